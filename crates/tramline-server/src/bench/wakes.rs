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
use tramline::wake::{Listener, Wake};
use tramline::{Options, Tramline};

/// Events as they come: 800 a second, from sixteen callers.
const SHAPE: Shape = Shape { callers: 16, rate: Some(800.0), ordered: false };

/// Gives every hint several times.
#[derive(Debug)]
struct Repeated {
    hints: InProcess,
    times: usize,
}

impl Wake for Repeated {
    fn notify(&self, subscriptions: &[SubscriptionId]) {
        (0..self.times).for_each(|_| self.hints.notify(subscriptions));
    }

    fn listen(&self, to: SubscriptionId) -> Listener {
        self.hints.listen(to)
    }

    fn listen_to_all(&self) -> Listener {
        self.hints.listen_to_all()
    }
}

/// `wakes_once_cpu_percent` and `wakes_tenfold_cpu_percent`: the share of one core that this process takes.
pub(super) async fn measure(
    target: &Target,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    for (metric, times) in [("wakes_once_cpu_percent", 1), ("wakes_tenfold_cpu_percent", 10)] {
        let wake = Arc::new(Repeated { hints: InProcess::new(), times });
        let tram = Tramline::with(Options::new(target.url()).wake(wake)).await?;
        let load = Load::on(tram.clone(), tram, &format!("wakes/{times}/{round}"), SHAPE).await?;
        let (start, before) = (Instant::now(), cpu_ticks()?);
        tokio::time::sleep(size.idle).await;
        samples.add(metric, (cpu_ticks()? - before) / start.elapsed().as_secs_f64());
        load.stop().await?;
    }
    Ok(())
}
