//! `tramline tail`: the events of a topic that are kept, then those that come. It comes back after an outage without missing any.

use super::Cx;
use super::failure::{Exit, Failure};
use super::lenient;
use super::outage::Outage;
use super::print::{cell, clean, paint};
use super::sse::{Message, Parser};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use serde_json::Value;

pub(crate) const EXAMPLES: &str = "  tramline tail orders
  tramline tail orders --from-now
  tramline tail orders --after 4711 --key order:42
  tramline tail orders --count 1 --json | jq .payload";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The topic
    topic: String,
    /// Only events of this key
    #[arg(long)]
    key: Option<String>,
    /// Only events after this one; all that are kept unless set
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Only events that come from now on
    #[arg(long, conflicts_with = "after")]
    from_now: bool,
    /// End after this many events
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Where the stream has come to.
struct Place {
    /// The last event that was shown, or where the server began.
    after: Option<String>,
    /// How many are still wanted.
    left: Option<u64>,
}

/// `tramline tail`.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let after = if args.from_now { Some("now".to_owned()) } else { args.after.clone() };
    let mut place = Place { after, left: args.count };
    let mut outage = Outage::default();
    while place.left != Some(0) {
        if let Err(failure) = follow(&cx, &args, &mut place, &mut outage).await {
            outage.wait(failure).await?;
        }
    }
    Ok(())
}

/// Shows events until enough are shown or the connection ends.
async fn follow(cx: &Cx, args: &Args, place: &mut Place, outage: &mut Outage) -> Result<(), Failure> {
    let mut url = cx.client.url(&["v1", "topics", &args.topic, "events"])?;
    for (name, value) in [("after", &place.after), ("key", &args.key)] {
        if let Some(value) = value {
            url.query_pairs_mut().append_pair(name, value);
        }
    }
    let request = cx.client.request(Method::GET, url).header("accept", "text/event-stream");
    let mut response = cx.client.send(request).await?;
    outage.over();
    let mut parser = Parser::default();
    while let Some(bytes) = response.chunk().await.map_err(|error| cx.client.unreachable(&error))? {
        for message in parser.feed(&bytes) {
            show(cx, &message, place)?;
            if place.left == Some(0) {
                return Ok(());
            }
        }
        place.after = parser.id().map(str::to_owned).or(place.after.take());
    }
    let mut ended = Failure::new(Exit::Unreachable, "the server ended the stream");
    ended.again = Some(super::failure::Again::Soon);
    Err(ended)
}

fn show(cx: &Cx, message: &Message, place: &mut Place) -> Result<(), Failure> {
    let event = lenient::read(message.data.as_bytes()).map_err(|_| cx.client.no_server())?;
    place.left = place.left.map(|left| left - 1);
    let colour = cx.print.terminal();
    if cx.print.json() { cx.print.text(&message.data) } else { cx.print.text(&line(&event, colour)) }
}

/// An event on one line: id, time, type, key and payload.
fn line(event: &Value, colour: bool) -> String {
    let field = |name: &str| clean(&cell(&event[name]));
    let (id, kind) = (field("id"), field("type"));
    let (id, kind) = if colour { (paint(&id, "2"), paint(&kind, "36")) } else { (id, kind) };
    format!("{id}\t{}\t{kind}\t{}\t{}", field("emitted_at"), field("key"), clean(&payload(event)))
}

/// JSON as it is; bytes as text as far as they are text.
fn payload(event: &Value) -> String {
    match event["payload_base64"].as_str() {
        Some(base64) => match BASE64_STANDARD.decode(base64) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => base64.to_owned(),
        },
        None => event["payload"].to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let event = json!({"id": "7", "emitted_at": "now", "type": "a\nb", "payload": {"x": 1}});
        assert_eq!(line(&event, false), "7\tnow\ta\\nb\t-\t{\"x\":1}");
        let event = json!({"id": "7", "emitted_at": "now", "key": "k", "payload_base64": "aGkKeW91"});
        assert_eq!(line(&event, false), "7\tnow\t-\tk\thi\\nyou");
    }
}
