//! Request bodies: read within limits of size and time, decompressed where need be.

use crate::http::json::Object;
use crate::http::place::lacks_place;
use crate::http::problem::{Answer, Problem};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use flate2::write::GzDecoder;
use http_body_util::BodyExt;
use serde::Deserialize;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Compressed input is taken in pieces of this size, so that one piece cannot become too much memory.
const PIECE: usize = 1 << 10;
/// About how much is decompressed at once.
const ENOUGH: usize = 64 << 10;

/// What is no larger is copied: it lies in the buffer of its connection, which cannot be used again as long as somebody has it.
const SMALL: usize = 4 << 10;

/// A body that is read as a whole has to come at least as fast as this, in bytes per second, after a first pause.
const SLOWEST: u64 = 16 << 10;
/// So much of each body needs no room: quick little requests must not depend on what large bodies leave.
const FREE: usize = 64 << 10;
/// Room is counted in pieces of this size.
const UNIT: usize = 1 << 10;

/// What all bodies have in common: their limits, and the room for those that are being read.
pub(crate) struct Bodies {
    /// The largest body, in bytes after decompression.
    most: usize,
    /// How long a client may pause.
    pause: Duration,
    room: Arc<Semaphore>,
}

impl Bodies {
    /// `buffered`: how many bytes are there at the same time of bodies that are being read. The largest body always fits.
    pub(crate) fn new(most: usize, buffered: usize, pause: Duration) -> Bodies {
        let units = buffered.max(most).div_ceil(UNIT).min(Semaphore::MAX_PERMITS);
        Bodies { most, pause, room: Arc::new(Semaphore::new(units)) }
    }
}

/// A body that is read piece by piece.
pub(crate) struct Reader {
    body: Body,
    pause: Duration,
    /// Since when it is read, if it has to come as a whole; a stream may be slow.
    since: Option<Instant>,
    received: u64,
    gzip: Option<Gzip>,
    room: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

/// What was received and not decompressed yet, and the state in between.
struct Gzip {
    received: Bytes,
    decoder: GzDecoder<Vec<u8>>,
}

impl Reader {
    /// A reader of a stream, which may last for ever, but has no long pauses.
    pub(crate) fn new(headers: &HeaderMap, body: Body, bodies: &Bodies) -> Answer<Reader> {
        let gzip = match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
            None | Some(b"identity") => None,
            Some(b"gzip") => Some(Gzip { received: Bytes::new(), decoder: GzDecoder::new(Vec::new()) }),
            Some(_) => {
                return Err(Problem::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "this content encoding is not known",
                    "send the body as it is, or with gzip",
                ));
            }
        };
        let (pause, room) = (bodies.pause, bodies.room.clone());
        Ok(Reader { body, pause, since: None, received: 0, gzip, room, taken: None })
    }

    /// Takes or gives back room for `bytes` that are kept until more comes.
    pub(crate) fn keep(&mut self, bytes: usize) -> Answer<()> {
        let wanted = bytes.saturating_sub(FREE).div_ceil(UNIT);
        let had = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if wanted < had {
            self.taken.as_mut().and_then(|taken| taken.split(had - wanted));
        } else if wanted > had {
            let missing = u32::try_from(wanted - had).unwrap_or(u32::MAX);
            let more = self.room.clone().try_acquire_many_owned(missing).map_err(|_| crowded())?;
            match &mut self.taken {
                Some(taken) => taken.merge(more),
                None => self.taken = Some(more),
            }
        }
        Ok(())
    }

    /// The next piece, decompressed; `None` at the end.
    pub(crate) async fn next(&mut self) -> Answer<Option<Bytes>> {
        loop {
            if let Some(gzip) = &mut self.gzip {
                let piece = gzip.inflate()?;
                if !piece.is_empty() {
                    return Ok(Some(piece));
                }
            }
            let frame = tokio::time::timeout(self.patience(), self.body.frame()).await.map_err(|_| {
                let detail = "the body did not come in time";
                Problem::new(StatusCode::REQUEST_TIMEOUT, detail, "send it faster and without pauses")
            })?;
            let Some(frame) = frame else { return self.end() };
            let frame = frame.map_err(|error| match lacks_place(&error) {
                true => Problem::busy(),
                false => Problem::malformed("the body ended early", "send all of it"),
            })?;
            let Ok(data) = frame.into_data() else { continue };
            self.received += data.len() as u64;
            match &mut self.gzip {
                None => return Ok(Some(data)),
                Some(gzip) => gzip.received = data,
            }
        }
    }

    /// How long to wait for the next piece.
    fn patience(&self) -> Duration {
        let Some(since) = self.since else { return self.pause };
        let due = self.pause + Duration::from_millis(self.received * 1_000 / SLOWEST);
        due.saturating_sub(since.elapsed()).min(self.pause)
    }

    fn end(&mut self) -> Answer<Option<Bytes>> {
        let Some(gzip) = self.gzip.take() else { return Ok(None) };
        let rest = gzip.decoder.finish().map_err(not_gzip)?;
        Ok((!rest.is_empty()).then(|| rest.into()))
    }
}

impl Gzip {
    /// About [`ENOUGH`] of what was received; nothing when more has to come first.
    fn inflate(&mut self) -> Answer<Bytes> {
        while !self.received.is_empty() && self.decoder.get_ref().len() < ENOUGH {
            let piece = self.received.split_to(PIECE.min(self.received.len()));
            self.decoder.write_all(&piece).map_err(not_gzip)?;
        }
        Ok(std::mem::take(self.decoder.get_mut()).into())
    }
}

fn not_gzip(error: std::io::Error) -> Problem {
    Problem::malformed(format!("the body is not gzip: {error}"), "compress it again, or send it as it is")
}

fn crowded() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many large bodies are being read",
        "try again in a moment, send less at once, or raise max_buffered",
    )
}

/// All of a body, within the limits of size and time.
pub(crate) async fn read(headers: &HeaderMap, body: Body, bodies: &Bodies) -> Answer<Bytes> {
    let limit = bodies.most;
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Problem::too_large(limit));
    }
    let mut reader = Reader::new(headers, body, bodies)?;
    reader.since = Some(Instant::now());
    let Some(first) = reader.next().await? else { return Ok(Bytes::new()) };
    check(first.len(), limit)?;
    let first = if first.len() <= SMALL { Bytes::copy_from_slice(&first) } else { first };
    reader.keep(first.len())?;
    let Some(second) = reader.next().await? else { return Ok(first) };
    check(first.len() + second.len(), limit)?;
    let mut all = BytesMut::from(&first[..]);
    all.extend_from_slice(&second);
    reader.keep(all.len())?;
    while let Some(more) = reader.next().await? {
        check(all.len() + more.len(), limit)?;
        reader.keep(all.len() + more.len())?;
        all.extend_from_slice(&more);
    }
    Ok(all.freeze())
}

fn check(size: usize, limit: usize) -> Answer<()> {
    if size > limit { Err(Problem::too_large(limit)) } else { Ok(()) }
}

/// The value in a JSON body. An empty body stands for an empty object.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Answer<T> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    Ok(serde_json::from_slice::<Object<T>>(body)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    fn bodies(most: usize) -> Bodies {
        Bodies::new(most, 1 << 30, Duration::from_secs(5))
    }

    fn gzip(data: &[u8]) -> (HeaderMap, Body) {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(data).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        (headers, Body::from(encoder.finish().unwrap()))
    }

    #[tokio::test]
    async fn a_compressed_body_is_read_as_what_it_was() {
        let (headers, body) = gzip(b"hello");
        assert_eq!(read(&headers, body, &bodies(100)).await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_bomb_is_refused_by_what_it_would_become() {
        let (headers, body) = gzip(&vec![0; 50 << 20]);
        assert_eq!(read(&headers, body, &bodies(1 << 20)).await.unwrap_err().status(), 413);
    }

    #[tokio::test]
    async fn what_is_not_gzip_is_malformed_and_other_encodings_are_unknown() {
        let (headers, _) = gzip(b"");
        assert_eq!(read(&headers, Body::from("plain"), &bodies(100)).await.unwrap_err().status(), 400);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, "br".parse().unwrap());
        assert_eq!(read(&headers, Body::from("x"), &bodies(100)).await.unwrap_err().status(), 415);
    }

    #[tokio::test]
    async fn a_body_that_stops_coming_is_given_up() {
        let body = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let impatient = Bodies::new(100, 100, Duration::from_millis(10));
        assert_eq!(read(&HeaderMap::new(), body, &impatient).await.unwrap_err().status(), 408);
    }

    /// Each pause was short enough, so such a body never ended, and its request kept its place.
    #[tokio::test]
    async fn a_body_that_comes_drop_by_drop_is_given_up() {
        let drops = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        let impatient = Bodies::new(1 << 20, 1 << 20, Duration::from_millis(50));
        let given_up = read(&HeaderMap::new(), Body::from_stream(drops), &impatient).await;
        assert_eq!(given_up.unwrap_err().status(), 408);
    }

    #[test]
    fn a_large_body_may_take_longer_than_a_small_one() {
        let pause = Duration::from_secs(30);
        let bodies = Bodies::new(100, 100, pause);
        let mut reader = Reader::new(&HeaderMap::new(), Body::empty(), &bodies).unwrap();
        assert_eq!(reader.patience(), pause, "a stream may take its time");
        let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(60)) else { return };
        reader.since = Some(long_ago);
        assert_eq!(reader.patience(), Duration::ZERO);
        reader.received = 100 * SLOWEST;
        assert_eq!(reader.patience(), pause);
    }

    #[test]
    fn large_bodies_share_room_and_small_ones_need_none() {
        let bodies = Bodies::new(100 << 10, 100 << 10, Duration::from_secs(5));
        let reader = || Reader::new(&HeaderMap::new(), Body::empty(), &bodies).unwrap();
        let (mut large, mut other) = (reader(), reader());
        large.keep(160 << 10).unwrap();
        other.keep(64 << 10).unwrap();
        assert_eq!(other.keep(70 << 10).unwrap_err().status(), 503);
        large.keep(100 << 10).unwrap();
        other.keep(70 << 10).unwrap();
        drop((large, other));
        assert_eq!(bodies.room.available_permits(), 100);
    }
}
