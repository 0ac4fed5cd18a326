//! `tramline limit`: what all workers of a subscription may do together.

use super::Cx;
use super::failure::Failure;
use super::print::duration;
use super::value;
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "  tramline limit emails --concurrency 10
  tramline limit emails --rate 100/1m --per-key 1
  tramline limit emails --none";

/// What the command takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The subscription
    name: String,
    /// How many events may be under way at once
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// How many events of one key may be under way at once
    #[arg(long, value_name = "N")]
    per_key: Option<u32>,
    /// How many events may start in a period
    #[arg(long, value_name = "EVENTS/DURATION", value_parser = rate)]
    rate: Option<(u32, Duration)>,
    /// No limits any longer
    #[arg(long, conflicts_with_all = ["concurrency", "per_key", "rate"])]
    #[arg(required_unless_present_any = ["concurrency", "per_key", "rate"])]
    none: bool,
}

/// `tramline limit`. What is not named has no limit afterwards.
pub(super) async fn run(cx: Cx, args: Args) -> Result<(), Failure> {
    let path = ["v1", "subscriptions", &args.name];
    let subscription = cx.client.get(&path, &[]).await?;
    let rate = args.rate.map(|(events, per)| json!({"events": events, "per_ms": value::millis(per)}));
    let limits = match args.none {
        true => Value::Null,
        false => json!({"concurrency": args.concurrency, "per_key_concurrency": args.per_key, "rate": rate}),
    };
    let put = json!({"topics": subscription["topics"], "limits": limits});
    let answer = cx.client.put(&path, &put).await?;
    cx.print.item(&answer, |answer| format!("{}: {}", args.name, shown(answer)))
}

/// The limits of a subscription, for people.
pub(super) fn shown(subscription: &Value) -> String {
    let limits = &subscription["limits"];
    let mut parts = Vec::new();
    parts.extend(limits["concurrency"].as_u64().map(|most| format!("{most} at once")));
    parts.extend(limits["per_key_concurrency"].as_u64().map(|most| format!("{most} per key")));
    let rate = &limits["rate"];
    parts.extend(rate["events"].as_u64().map(|events| format!("{events} in {}", duration(&rate["per_ms"]))));
    if parts.is_empty() { "no limits".to_owned() } else { parts.join(", ") }
}

/// `100/1m`.
fn rate(text: &str) -> Result<(u32, Duration), String> {
    let wrong = || "use events and a period, like 100/1m".to_owned();
    let (events, per) = text.split_once('/').ok_or_else(wrong)?;
    Ok((events.parse().map_err(|_| wrong())?, value::duration(per)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_events_and_a_period() {
        assert_eq!(rate("100/1m"), Ok((100, Duration::from_secs(60))));
        assert!(rate("100").is_err() && rate("x/1m").is_err() && rate("5/soon").is_err());
    }

    #[test]
    fn limits_are_shown_in_words() {
        let limited = json!({"limits": {"concurrency": 3, "per_key_concurrency": 1, "rate": {"events": 5, "per_ms": 60000}}});
        assert_eq!(shown(&limited), "3 at once, 1 per key, 5 in 1m");
        assert_eq!(shown(&json!({"name": "mails"})), "no limits");
    }
}
