//! Hints that come ten times: what that costs.

use super::load::{Load, Shape};
use super::process::cpu_ticks;
use super::row::BoxError;
use super::target::Target;
use super::{Samples, Size};
use std::sync::Arc;
use std::time::Instant;
use tramline::model::id::SubscriptionId;
use tramline::wake::in_process::InProcess;
use tramline::wake::{Listener, Wake, address};
use tramline::{Options, Tramline};

/// Events as they come: 800 a second, from sixteen callers.
const SHAPE: Shape = Shape { callers: 16, rate: Some(800.0), ordered: false };

/// Gives every hint over each of several ways to the same place.
#[derive(Debug)]
struct Repeated {
    ways: Vec<Arc<dyn Wake>>,
}

impl Wake for Repeated {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        self.ways.iter().for_each(|way| way.notify(subscriptions));
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.ways[0].listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.ways[0].listen_to_all()
    }
}

/// `wakes_once_cpu_percent` and `wakes_tenfold_cpu_percent`: the share of one core that this process takes.
pub(super) async fn measure(
    target: &Target,
    wake: Option<&str>,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    for (metric, times) in [("wakes_once_cpu_percent", 1), ("wakes_tenfold_cpu_percent", 10)] {
        let (emitter, worker) = handles(target, wake, times).await?;
        let load = Load::on(emitter, worker, &format!("wakes/{times}/{round}"), SHAPE).await?;
        let (start, before) = (Instant::now(), cpu_ticks()?);
        tokio::time::sleep(size.idle).await;
        samples.add(metric, (cpu_ticks()? - before) / start.elapsed().as_secs_f64());
        load.stop().await?;
    }
    Ok(())
}

/// Who emits and who works: one process without a server for hints, else two that hear each other over it. A relay makes one of hints that come
/// together, so the emitter has as many relays as each hint is to be sent times.
async fn handles(
    target: &Target,
    wake: Option<&str>,
    times: usize,
) -> Result<(Tramline, Tramline), BoxError> {
    let open = async |wake: Arc<dyn Wake>| Tramline::with(Options::new(target.url()).wake(wake)).await;
    let Some(url) = wake else {
        let ways = vec![Arc::new(InProcess::new()) as Arc<dyn Wake>; times];
        let tram = open(Arc::new(Repeated { ways })).await?;
        return Ok((tram.clone(), tram));
    };
    let channel = format!("bench.{}", std::process::id());
    let way = || address::open(url, Some(&channel));
    let ways = (0..times).map(|_| way()).collect::<tramline::Result<_>>()?;
    Ok((open(Arc::new(Repeated { ways })).await?, open(way()?).await?))
}
