//! Points in time, as the stores keep them.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Milliseconds since the Unix epoch, UTC. The store's clock makes them; code never reads the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub i64);

impl Time {
    /// The latest time that can be stored: "not before the end of time".
    pub const NEVER: Time = Time(i64::MAX);

    /// This time plus a duration, saturating.
    pub const fn after(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(millis(duration)))
    }

    /// This time minus a duration, saturating.
    pub const fn before(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(millis(duration)))
    }

    /// How long from `earlier` to this time; zero if it is not earlier.
    pub const fn since(self, earlier: Time) -> Duration {
        let millis = self.0.saturating_sub(earlier.0);
        if millis <= 0 { Duration::ZERO } else { Duration::from_millis(millis.cast_unsigned()) }
    }
}

/// A duration in whole milliseconds, saturating.
pub const fn millis(duration: Duration) -> i64 {
    let millis = duration.as_millis();
    if millis > i64::MAX as u128 { i64::MAX } else { millis as i64 }
}

/// Durations as whole milliseconds, for settings that are stored and shown.
pub(crate) mod as_millis {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(super::millis(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// Optional durations as whole milliseconds.
pub(crate) mod as_optional_millis {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(super::millis).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}
