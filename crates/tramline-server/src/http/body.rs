//! Request bodies: read within limits of size and time, decompressed where need be.

use crate::http::json::Object;
use crate::http::problem::{Answer, Problem};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use flate2::write::GzDecoder;
use http_body_util::BodyExt;
use serde::Deserialize;
use std::io::Write;
use std::time::Duration;

/// Compressed input is taken in pieces of this size, so that one piece cannot become too much memory.
const PIECE: usize = 1 << 10;
/// About how much is decompressed at once.
const ENOUGH: usize = 64 << 10;

/// A body that is read piece by piece.
pub(crate) struct Reader {
    body: Body,
    pause: Duration,
    gzip: Option<Gzip>,
}

/// What was received and not decompressed yet, and the state in between.
struct Gzip {
    received: Bytes,
    decoder: GzDecoder<Vec<u8>>,
}

impl Reader {
    /// A reader that gives up when the client pauses for longer than `pause`.
    pub(crate) fn new(headers: &HeaderMap, body: Body, pause: Duration) -> Answer<Reader> {
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
        Ok(Reader { body, pause, gzip })
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
            let frame = tokio::time::timeout(self.pause, self.body.frame()).await.map_err(|_| {
                let detail = "the body did not come in time";
                Problem::new(StatusCode::REQUEST_TIMEOUT, detail, "send it without pauses")
            })?;
            let Some(frame) = frame else { return self.end() };
            let frame = frame.map_err(|_| Problem::malformed("the body ended early", "send all of it"))?;
            let Ok(data) = frame.into_data() else { continue };
            match &mut self.gzip {
                None => return Ok(Some(data)),
                Some(gzip) => gzip.received = data,
            }
        }
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

/// All of a body, at most `limit` bytes after decompression.
pub(crate) async fn read(headers: &HeaderMap, body: Body, limit: usize, pause: Duration) -> Answer<Bytes> {
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Problem::too_large(limit));
    }
    let mut reader = Reader::new(headers, body, pause)?;
    let Some(first) = reader.next().await? else { return Ok(Bytes::new()) };
    check(first.len(), limit)?;
    let Some(second) = reader.next().await? else { return Ok(first) };
    check(first.len() + second.len(), limit)?;
    let mut all = BytesMut::from(&first[..]);
    all.extend_from_slice(&second);
    while let Some(more) = reader.next().await? {
        check(all.len() + more.len(), limit)?;
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

    const PAUSE: Duration = Duration::from_secs(5);

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
        assert_eq!(read(&headers, body, 100, PAUSE).await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_bomb_is_refused_by_what_it_would_become() {
        let (headers, body) = gzip(&vec![0; 50 << 20]);
        assert_eq!(read(&headers, body, 1 << 20, PAUSE).await.unwrap_err().status(), 413);
    }

    #[tokio::test]
    async fn what_is_not_gzip_is_malformed_and_other_encodings_are_unknown() {
        let (headers, _) = gzip(b"");
        assert_eq!(read(&headers, Body::from("plain"), 100, PAUSE).await.unwrap_err().status(), 400);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, "br".parse().unwrap());
        assert_eq!(read(&headers, Body::from("x"), 100, PAUSE).await.unwrap_err().status(), 415);
    }

    #[tokio::test]
    async fn a_body_that_stops_coming_is_given_up() {
        let body = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(
            read(&HeaderMap::new(), body, 100, Duration::from_millis(10)).await.unwrap_err().status(),
            408
        );
    }
}
