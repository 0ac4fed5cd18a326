//! Hints that come ten times: what that costs.

use super::load::{Load, Shape};
use super::process::{cpu_ticks, this_thread, ticks_of};
use super::row::BoxError;
use super::target::Target;
use super::{Samples, Size};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio_util::sync::CancellationToken;
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

/// `wakes_once_cpu_percent` and `wakes_tenfold_cpu_percent`: the share of one core that emitter and worker take.
pub(super) async fn measure(
    target: &Target,
    wake: Option<&str>,
    size: Size,
    round: usize,
    samples: &mut Samples,
) -> Result<(), BoxError> {
    for (metric, times) in [("wakes_once_cpu_percent", 1), ("wakes_tenfold_cpu_percent", 10)] {
        let name = format!("wakes/{times}/{round}");
        let open = async |wake: Arc<dyn Wake>| Tramline::with(Options::new(target.url()).wake(wake)).await;
        let (load, repeater) = match wake {
            None => {
                let ways = vec![Arc::new(InProcess::new()) as Arc<dyn Wake>; times];
                let tram = open(Arc::new(Repeated { ways })).await?;
                (Load::on(tram.clone(), tram, &name, SHAPE).await?, None)
            }
            Some(url) => {
                let channel = |end: &str| format!("bench.{}.{end}", std::process::id());
                let way = |end: &str| address::open(url, Some(&channel(end)));
                let (emitter, worker) = (open(way("given")?).await?, open(way("heard")?).await?);
                let load = Load::on(emitter, worker.clone(), &name, SHAPE).await?;
                let id = worker.subscription(&name).await?.id;
                (load, Some(Repeater::start(url, [channel("given"), channel("heard")], times, id)?))
            }
        };
        let ticks = || -> Result<f64, BoxError> {
            let repeated = repeater.as_ref().map_or(Ok(0.0), |repeater| ticks_of(&repeater.place))?;
            Ok(cpu_ticks()? - repeated)
        };
        let (start, before) = (Instant::now(), ticks()?);
        tokio::time::sleep(size.idle).await;
        samples.add(metric, (ticks()? - before) / start.elapsed().as_secs_f64());
        if let Some(repeater) = repeater {
            repeater.end()?;
        }
        load.stop().await?;
    }
    Ok(())
}

/// Hears the hints of one subscription on one channel of a server and gives each several times on another one, in a thread whose time
/// is not counted.
struct Repeater {
    /// Where the kernel tells of the thread.
    place: PathBuf,
    stop: CancellationToken,
    thread: JoinHandle<Result<(), BoxError>>,
}

impl Repeater {
    fn start(
        url: &str,
        [from, to]: [String; 2],
        times: usize,
        id: SubscriptionId,
    ) -> Result<Repeater, BoxError> {
        let (url, stop, (tell, told)) = (url.to_owned(), CancellationToken::new(), mpsc::channel());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            tell.send(this_thread()?)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime
                .block_on(stopped.run_until_cancelled(async {
                    let hears = address::open(&url, Some(&from))?;
                    // A relay makes one of hints that come together, so each time needs one of its own.
                    let ways = (0..times).map(|_| address::open(&url, Some(&to)));
                    let says = Repeated { ways: ways.collect::<tramline::Result<_>>()? };
                    let mut listener = hears.listen(id);
                    loop {
                        listener.arm();
                        listener.wait().await;
                        says.notify(&[id]);
                    }
                }))
                .unwrap_or(Ok(()))
        });
        Ok(Repeater { place: told.recv()?, stop, thread })
    }

    fn end(self) -> Result<(), BoxError> {
        self.stop.cancel();
        self.thread.join().map_err(|_| "the thread that repeats hints has panicked")?
    }
}
