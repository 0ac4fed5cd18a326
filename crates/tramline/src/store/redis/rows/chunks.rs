//! Chunks: the events of each as one value, and the log of each topic, which is an index over its chunks.

use super::grow;
use crate::error::Result;
use crate::model::chunk::ChunkRow;
use crate::model::id::{ChunkId, TopicId};
use crate::model::time::Time;
use crate::store::redis::failures;
use crate::store::redis::pack::{Packer, Unpacker};
use crate::store::redis::session::{Session, get, key};
use crate::store::redis::tuple::{Columns, Tuple};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

const CHUNK_BYTES: i64 = 220;

pub(super) fn chunk_key(session: &Session<'_>, chunk: ChunkId) -> Vec<u8> {
    session.key(&chunk_name(chunk))
}

/// The key of a chunk in a store of this name.
pub(in crate::store::redis) fn chunk_key_in(name: &str, chunk: ChunkId) -> Vec<u8> {
    key(name, &chunk_name(chunk))
}

fn chunk_name(chunk: ChunkId) -> String {
    format!("c:{chunk}")
}

pub(in crate::store::redis) fn one_chunk(session: &Session<'_>, id: ChunkId) -> Result<Option<ChunkRow>> {
    session.blob(&chunk_key(session, id))?.map(|row| unpack_chunk(id, &row)).transpose()
}

/// A chunk from its value.
pub(in crate::store::redis) fn unpack_chunk(id: ChunkId, row: &[u8]) -> Result<ChunkRow> {
    let mut row = Unpacker::new(row);
    let chunk = unpack_meta(id, &mut row)?;
    Ok(ChunkRow { body: Bytes::copy_from_slice(row.bytes()?), ..chunk })
}

fn unpack_meta(id: ChunkId, row: &mut Unpacker<'_>) -> Result<ChunkRow> {
    Ok(ChunkRow {
        chunk: id,
        topic: TopicId(row.number()?),
        emitted_at: Time(row.number()?),
        prevs: row.numbers()?,
        mains: row.numbers()?,
        meta: row.text()?,
        body: Bytes::new(),
    })
}

/// How much of a chunk is read where its payloads do not matter: mostly that holds everything else.
const FRONT: usize = 8192;

/// Chunks without their payloads, which may be large, by number. Those that are gone are left out.
pub(in crate::store::redis) fn metas(
    session: &Session<'_>,
    chunks: impl Iterator<Item = ChunkId>,
) -> Result<BTreeMap<ChunkId, ChunkRow>> {
    let chunks: BTreeSet<ChunkId> = chunks.collect();
    let keys: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk_key(session, *chunk)).collect();
    session.expect_fronts(&keys, FRONT)?;
    let mut found = BTreeMap::new();
    for (&chunk, key) in chunks.iter().zip(&keys) {
        let Some(front) = session.front(key, FRONT)? else { continue };
        let meta = match unpack_meta(chunk, &mut Unpacker::new(&front)) {
            Ok(meta) => Some(meta),
            Err(_) => one_chunk(session, chunk)?,
        };
        found.extend(meta.map(|meta| (chunk, meta)));
    }
    Ok(found)
}

/// Says that these chunks will be read.
pub(in crate::store::redis) fn expect_chunks(
    session: &Session<'_>,
    chunks: impl Iterator<Item = ChunkId>,
) -> Result<()> {
    session.expect(chunks.map(|chunk| get(&chunk_key(session, chunk))))
}

fn pack_chunk(row: &ChunkRow) -> Vec<u8> {
    let some = |numbers: &[i64]| {
        if numbers.iter().all(|number| *number == 0) { Vec::new() } else { numbers.to_vec() }
    };
    Packer::new()
        .number(row.topic.0)
        .number(row.emitted_at.0)
        .numbers(&some(&row.prevs))
        .numbers(&some(&row.mains))
        .bytes(row.meta.as_bytes())
        .bytes(&row.body)
        .done()
}

/// A chunk as the log of its topic knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Logged {
    pub(in crate::store::redis) chunk: ChunkId,
    pub(in crate::store::redis) emitted_at: Time,
    pub(in crate::store::redis) count: i64,
    pub(in crate::store::redis) bytes: i64,
}

impl Logged {
    pub(in crate::store::redis) fn member(&self) -> Vec<u8> {
        Tuple::new().with(&[self.chunk.0, self.emitted_at.0, self.count, self.bytes]).bytes()
    }

    fn read(member: &[u8]) -> Logged {
        let mut columns = Columns(member);
        Logged {
            chunk: ChunkId(columns.number()),
            emitted_at: Time(columns.number()),
            count: columns.number(),
            bytes: columns.number(),
        }
    }
}

/// Writes a chunk.
pub(in crate::store::redis) fn write_chunk(session: &Session<'_>, row: &ChunkRow, logged: &Logged) {
    session.put_blob(chunk_key(session, row.chunk), pack_chunk(row));
    session.enter(log_key(session, row.topic), logged.member());
    grow(session, logged.bytes + CHUNK_BYTES);
}

/// Removes chunks that nothing refers to. Their events stay counted.
pub(in crate::store::redis) fn remove_chunks(session: &Session<'_>, topic: TopicId, chunks: &[Logged]) {
    for logged in chunks {
        session.withdraw(log_key(session, topic), logged.member());
        session.remove_blob(chunk_key(session, logged.chunk));
        failures::forget(session, logged.chunk);
        grow(session, -logged.bytes - CHUNK_BYTES);
    }
}

/// The chunks of a topic, by number.
fn log_key(session: &Session<'_>, topic: TopicId) -> Vec<u8> {
    session.key(&format!("l:{topic}"))
}

/// The next chunks of a topic, from one on to before another.
pub(in crate::store::redis) fn logged(
    session: &Session<'_>,
    topic: TopicId,
    from: i64,
    to: i64,
    limit: usize,
) -> Result<Vec<Logged>> {
    let range = (Tuple::new().with(&[from]).bytes(), Tuple::new().with(&[to]).bytes());
    let members = session.range(&log_key(session, topic), range, limit)?;
    Ok(members.iter().map(|member| Logged::read(member)).collect())
}

/// True if the chunk is there, and stays until this step is over.
pub(in crate::store::redis) fn is_logged(
    session: &Session<'_>,
    topic: TopicId,
    chunk: ChunkId,
) -> Result<bool> {
    Ok(!logged(session, topic, chunk.0, chunk.0.saturating_add(1), 1)?.is_empty())
}
