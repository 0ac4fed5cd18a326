//! Tokens.

use super::pack::{Packer, Unpacker};
use super::session::Session;
use crate::error::Result;
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::token::{TokenRow, taken, unknown};
use crate::store::verbs::SealToken;

fn table(session: &Session<'_>) -> Vec<u8> {
    session.key("tokens")
}

fn write(session: &Session<'_>, row: &TokenRow) {
    let optional = |text: &Option<String>| text.as_deref().map(str::as_bytes).map(<[u8]>::to_vec);
    let time = |time: Option<i64>| time.map(|time| time.to_be_bytes().to_vec());
    let packed = Packer::new()
        .bytes(&row.hash)
        .bytes(row.scopes.as_bytes())
        .optional(optional(&row.topics).as_deref())
        .optional(optional(&row.subscriptions).as_deref())
        .number(row.created_at)
        .optional(time(row.expires_at).as_deref())
        .optional(time(row.used_at).as_deref())
        .optional(optional(&row.sealed).as_deref())
        .done();
    session.put(table(session), row.name.as_bytes(), packed);
}

fn read(name: &[u8], row: &[u8]) -> Result<TokenRow> {
    let mut row = Unpacker::new(row);
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let time =
        |bytes: Option<&[u8]>| bytes.and_then(|bytes| Some(i64::from_be_bytes(bytes.try_into().ok()?)));
    Ok(TokenRow {
        name: String::from_utf8_lossy(name).into_owned(),
        hash: row.bytes()?.to_vec(),
        scopes: row.text()?,
        topics: text(row.optional()?),
        subscriptions: text(row.optional()?),
        created_at: row.number()?,
        expires_at: time(row.optional()?),
        used_at: time(row.optional()?),
        sealed: text(row.optional()?),
    })
}

fn find(session: &Session<'_>, name: &str) -> Result<Option<TokenRow>> {
    let row = session.get(&table(session), name.as_bytes())?;
    row.map(|row| read(name.as_bytes(), &row)).transpose()
}

pub(super) fn put(session: &Session<'_>, token: &Token) -> Result<Token> {
    let row = TokenRow::new(token, session.now)?;
    if find(session, &token.name)?.is_some() {
        return Err(taken(&token.name));
    }
    write(session, &row);
    row.read()
}

pub(super) fn all(session: &Session<'_>) -> Result<Vec<Token>> {
    session.all(&table(session))?.iter().map(|(name, row)| read(name, row)?.read()).collect()
}

pub(super) fn delete(session: &Session<'_>, name: &str) -> Result<()> {
    if find(session, name)?.is_none() {
        return Err(unknown(name));
    }
    session.remove(table(session), name);
    Ok(())
}

pub(super) fn seal(session: &Session<'_>, seal: &SealToken) -> Result<bool> {
    let row = find(session, &seal.name)?.filter(|row| row.sealed.as_ref() == Some(&seal.from));
    let Some(row) = row else { return Ok(false) };
    write(session, &TokenRow { sealed: Some(seal.to.clone()), ..row });
    Ok(true)
}

pub(super) fn touch(session: &Session<'_>, uses: &[(String, Time)]) -> Result<()> {
    for (name, at) in uses {
        if let Some(row) = find(session, name)? {
            let used_at = Some(row.used_at.map_or(at.0, |used| used.max(at.0)));
            write(session, &TokenRow { used_at, ..row });
        }
    }
    Ok(())
}
