//! Trace context: to which trace an event belongs, as the W3C writes it in headers.

use crate::model::event::{Event, Headers};

/// The header that says to which trace an event belongs, and what it follows from.
pub const TRACEPARENT: &str = "traceparent";
/// The header with what tracers add to that.
pub const TRACESTATE: &str = "tracestate";
/// The longest `tracestate` that everybody has to carry on.
const MAX_TRACESTATE: usize = 512;

/// The trace context of a request or message, as headers for events. What is no context is nobody's: it gives nothing.
pub fn context(traceparent: &str, tracestate: Option<&str>) -> Headers {
    let mut headers = Headers::new();
    if trace_id(traceparent).is_some() {
        headers.insert(TRACEPARENT.to_owned(), traceparent.to_owned());
        let state = tracestate.filter(|state| !state.is_empty() && state.len() <= MAX_TRACESTATE);
        headers.extend(state.map(|state| (TRACESTATE.to_owned(), state.to_owned())));
    }
    headers
}

/// True for the headers that are about a trace and not about the event.
pub(crate) fn is_about_trace(header: &str) -> bool {
    header == TRACEPARENT || header == TRACESTATE
}

/// What of some headers is about a trace.
pub(crate) fn context_of(headers: &Headers) -> Headers {
    let state = headers.get(TRACESTATE).map(String::as_str);
    headers.get(TRACEPARENT).map(|parent| context(parent, state)).unwrap_or_default()
}

/// Puts a context into an event, unless that has one of another trace, or no room left: nobody's emit fails because of a trace.
pub(crate) fn put(context: &Headers, event: &mut Event) {
    let own = event.headers.get(TRACEPARENT).and_then(|parent| trace_id(parent));
    let another = own.is_some() && own != context.get(TRACEPARENT).and_then(|parent| trace_id(parent));
    if another || context.is_empty() {
        return;
    }
    event.headers.retain(|name, _| !is_about_trace(name));
    if event.has_room_for(context) {
        event.headers.extend(context.clone());
    }
}

/// The trace of `00-<32 digits>-<16 digits>-<2 digits>`. Later versions may have more behind that.
pub(crate) fn trace_id(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.split('-');
    let mut next = |length: usize| {
        let hex = |part: &&str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        parts.next().filter(|part| part.len() == length).filter(hex)
    };
    let (version, trace, span, _flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    let zero = |id: &str| id.bytes().all(|b| b == b'0');
    let known = version != "ff" && (version != "00" || traceparent.len() == 55) && traceparent.len() <= 255;
    (known && !zero(trace) && !zero(span)).then_some(trace)
}

/// Whether somebody records the trace.
pub(crate) fn is_sampled(context: &Headers) -> bool {
    let flags = context.get(TRACEPARENT).and_then(|parent| parent.split('-').nth(3));
    flags.and_then(|flags| u8::from_str_radix(flags, 16).ok()).is_some_and(|flags| flags & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::MAX_HEADERS;

    const ONE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const SAME_TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-00";
    const ANOTHER: &str = "00-11111111111111111111111111111111-00f067aa0ba902b7-01";

    #[test]
    fn what_is_no_context_is_not_carried_on() {
        assert_eq!(context(ONE, Some("a=b")).len(), 2);
        assert_eq!(context(ONE, Some(&"x".repeat(513))).len(), 1);
        let zero = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let longer = format!("{ONE}-more");
        for bad in ["", "00", "x", &zero, &ONE.to_uppercase(), &ONE.replace("00-4", "ff-4"), &longer] {
            assert!(context(bad, Some("a=b")).is_empty(), "{bad}");
        }
        assert_eq!(context(&longer.replace("00-4", "01-4"), None).len(), 1);
    }

    #[test]
    fn an_event_keeps_the_context_of_another_trace_and_no_old_state() {
        let put = |own: &str| {
            let mut event = Event::new("t", "x").header(TRACEPARENT, own).header(TRACESTATE, "a=b");
            put(&context(ONE, None), &mut event);
            (event.headers[TRACEPARENT].clone(), event.headers.contains_key(TRACESTATE))
        };
        assert_eq!(put(SAME_TRACE), (ONE.to_owned(), false));
        assert_eq!(put(ANOTHER), (ANOTHER.to_owned(), true));
        assert_eq!(put("nonsense"), (ONE.to_owned(), false));
    }

    #[test]
    fn an_event_without_room_for_a_context_goes_without() {
        let full = "x".repeat(MAX_HEADERS - 1);
        let mut event = Event::new("t", "x").header("a", full);
        put(&context(ONE, None), &mut event);
        assert_eq!(event.headers.len(), 1);
        assert!(event.check().is_ok());
    }

    #[test]
    fn the_last_bit_of_the_flags_says_whether_somebody_records() {
        assert!(is_sampled(&context(ONE, None)));
        assert!(!is_sampled(&context(SAME_TRACE, None)));
        assert!(!is_sampled(&Headers::new()));
    }
}
