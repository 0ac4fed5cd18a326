//! Events that are items of tallies: they are added to their tallies at home before they are emitted where their topic is.
//!
//! Home notes under a token what it has added, until it is known that the events are stored. The step that stores them writes the token
//! down beside them. If nobody comes back to say so, a sweep asks the site: either the token is there, or the site refuses it from then
//! on, so that nobody can store the events any more. Then home takes the addition back: nobody has heard of it.

use super::SpreadStore;
use crate::error::{Error, Kind, Result};
use crate::model::event::Event;
use crate::model::id::{Incarnation, TallyId, TopicId};
use crate::model::tally::Added;
use crate::model::time::Time;
use crate::store::catalog::Catalog;
use crate::store::emit::{TRIES, restless};
use crate::store::idempotency::Entry;
use crate::store::redis::catalog::{read, written};
use crate::store::redis::emit::{self, known};
use crate::store::redis::session::Session;
use crate::store::redis::tally::place::{place, take_back};
use crate::store::redis::tuple::{Columns, Tuple};
use crate::store::redis::unique;
use crate::store::unique::{Sifted, names};
use crate::store::verbs::Emission;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long nobody asks what became of an emit: as long as its caller may be at it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a site knows what became of a token: longer than somebody may ask, also if home has forgotten in a fail-over that it
/// knew already; and longer than anybody can be on the way.
const STORED: Duration = Duration::from_secs(300);
const REFUSED: Duration = Duration::from_secs(24 * 3600);
/// How many tokens one step goes through.
const SOME: usize = 500;

/// What home has added for an emit that is on its way: under which token, for which topic, and what.
#[derive(Clone, Debug)]
struct Note {
    at: Time,
    token: i64,
    topic: TopicId,
    added: Vec<(TallyId, Added)>,
}

impl Note {
    fn table(session: &Session<'_>) -> Vec<u8> {
        session.key("placed")
    }

    /// As a member of the table, which is in the order of time.
    fn member(&self) -> Vec<u8> {
        let added: Vec<(i64, u64, u64)> =
            self.added.iter().map(|(tally, added)| (tally.0, added.first, added.count)).collect();
        Tuple::new().with(&[self.at.0, self.token]).carrying(&written(&(self.topic.0, added)))
    }

    fn read(member: &[u8]) -> Result<Note> {
        let mut columns = Columns(member);
        let (at, token) = (Time(columns.number()), columns.number());
        let (topic, added): (i64, Vec<(i64, u64, u64)>) = read(columns.load())?;
        let added = added.into_iter().map(|(tally, first, count)| (TallyId(tally), Added { first, count }));
        Ok(Note { at, token, topic: TopicId(topic), added: added.collect() })
    }

    fn is_there(&self, session: &Session<'_>) -> Result<bool> {
        let range = Tuple::new().with(&[self.at.0, self.token]).all();
        Ok(!session.range(&Note::table(session), range, 1)?.is_empty())
    }

    fn remove(&self, session: &Session<'_>) {
        session.withdraw(Note::table(session), self.member());
    }
}

/// Units of one topic of which home has added the items.
struct Placed {
    note: Note,
    units: Vec<PlacedUnit>,
    /// Those that their tallies did not take, by place among all that were given.
    refused: BTreeMap<usize, Error>,
}

struct PlacedUnit {
    events: Vec<Event>,
    /// Which of them are no items, because they are there already.
    duplicates: BTreeSet<usize>,
}

/// What a site has already of a unit.
#[derive(Default)]
struct Present {
    /// The answer that its idempotency key already has.
    answer: Option<Result<Emission>>,
    /// Events that are there because of their unique keys.
    duplicates: BTreeSet<usize>,
}

/// What became of placed units at their site.
enum Arrival {
    Stored(Vec<Result<Emission>>),
    /// Nothing, because some of them are there already, and home did not know.
    OtherwisePresent,
}

impl SpreadStore {
    /// Stores units of one topic that are items of tallies.
    pub(super) async fn emit_placed(
        &self,
        topic: TopicId,
        units: &[Vec<Event>],
        now: Option<Time>,
    ) -> Result<Vec<Result<Emission>>> {
        let has_key = |event: &Event| event.idempotency_key.is_some() || event.unique.is_some();
        if !units.iter().flatten().any(has_key) {
            let nothing = units.iter().map(|_| Present::default()).collect();
            return match self.place_and_emit(topic, units, nothing, now).await? {
                (refused, Arrival::Stored(stored)) => Ok(in_place(refused, stored)),
                (_, Arrival::OtherwisePresent) => Err(restless()),
            };
        }
        // One after the other: of two with one key, the second has to see what the first one stored.
        let mut answers: Vec<Result<Emission>> = Vec::with_capacity(units.len());
        for unit in units.chunks(1) {
            answers.push(match self.emit_one_placed(topic, unit, now).await {
                // Nothing is stored yet, and the caller can see to it.
                Err(error) if error.kind() == Kind::NotFound && answers.is_empty() => return Err(error),
                answer => answer.flatten(),
            });
        }
        Ok(answers)
    }

    async fn emit_one_placed(
        &self,
        topic: TopicId,
        unit: &[Vec<Event>],
        now: Option<Time>,
    ) -> Result<Result<Emission>> {
        for _ in 0..TRIES {
            let mut present = self.site(topic).read(now, |session| present(session, unit)).await?;
            if let Some(answer) = present.iter_mut().find_map(|present| present.answer.take()) {
                return Ok(answer);
            }
            if let (refused, Arrival::Stored(stored)) = self.place_and_emit(topic, unit, present, now).await?
            {
                return in_place(refused, stored).pop().ok_or_else(restless);
            }
        }
        Err(restless())
    }

    async fn place_and_emit(
        &self,
        topic: TopicId,
        units: &[Vec<Event>],
        present: Vec<Present>,
        now: Option<Time>,
    ) -> Result<(BTreeMap<usize, Error>, Arrival)> {
        let token = Incarnation::random().0;
        let add = |session: &Session<'_>| add(session, topic, token, units, &present);
        let placed = self.home.add(now, add).await?;
        let stored = self.site(topic).add(now, |session: &Session<'_>| arrive(session, &placed)).await;
        let settled = match &stored {
            Ok(Arrival::Stored(_)) => self.settle_note(&placed.note, true, now).await,
            // An error may say that nothing is stored, or leave that open.
            _ => self.resolve(&placed.note, now).await,
        };
        if let Err(error) = settled {
            tracing::debug!(error = %error, "what became of an emit is asked later");
        }
        Ok((placed.refused, stored?))
    }

    /// Asks what became of emits that nobody came back from. Gives the topics at which that could not be found out.
    pub(super) async fn resolve_all(&self, now: Option<Time>) -> Result<BTreeSet<TopicId>> {
        let (mut from, mut open) = (Tuple::new().bytes(), BTreeSet::new());
        loop {
            let old = |session: &Session<'_>| {
                let to = Tuple::new().with(&[session.now.before(PATIENCE).0]).bytes();
                session.range(&Note::table(session), (from.clone(), to), SOME)
            };
            let found = self.home.read(now, old).await?;
            let mut by_topic: BTreeMap<TopicId, Vec<Note>> = BTreeMap::new();
            for member in &found {
                let note = Note::read(member)?;
                by_topic.entry(note.topic).or_default().push(note);
            }
            by_topic.retain(|topic, _| !open.contains(topic));
            let resolve = |(topic, notes): (TopicId, Vec<Note>)| async move {
                for note in &notes {
                    if let Err(error) = self.resolve(note, now).await {
                        tracing::warn!(error = %error, "what became of an emit is not known yet");
                        return Some(topic);
                    }
                }
                None
            };
            open.extend(self.side_by_side(by_topic, resolve).await.into_iter().flatten());
            match found.last().filter(|_| found.len() == SOME) {
                Some(last) => from = [last, &[0][..]].concat(),
                None => return Ok(open),
            }
        }
    }

    /// Sees to it that either the events of a note are stored, or none of them ever will be, and that home knows.
    async fn resolve(&self, note: &Note, now: Option<Time>) -> Result<()> {
        let ask = |session: &Session<'_>| has_arrived(session, note.token);
        let is_stored = self.site(note.topic).write(now, ask).await?;
        self.settle_note(note, is_stored, now).await
    }

    /// Home knows. Somebody else may have asked at the same time: the note is settled by the first.
    async fn settle_note(&self, note: &Note, is_stored: bool, now: Option<Time>) -> Result<()> {
        let settle = |session: &Session<'_>| {
            if !note.is_there(session)? {
                return Ok(());
            }
            if !is_stored {
                note.added.iter().try_for_each(|(tally, added)| take_back(session, *tally, *added))?;
            }
            note.remove(session);
            Ok(())
        };
        self.home.write(now, settle).await
    }
}

/// Each answer in its place.
fn in_place(mut refused: BTreeMap<usize, Error>, stored: Vec<Result<Emission>>) -> Vec<Result<Emission>> {
    let count = refused.len() + stored.len();
    let mut stored = stored.into_iter();
    let answer = |at| refused.remove(&at).map_or_else(|| stored.next(), |error| Some(Err(error)));
    (0..count).filter_map(answer).collect()
}

/// What the site has already of each unit.
fn present(session: &Session<'_>, units: &[Vec<Event>]) -> Result<Vec<Present>> {
    let catalog = session.catalog();
    let standings = unique::standings(session, &names(units.iter().flatten(), &catalog))?;
    let sifted = Sifted::new(&mut units.to_vec(), &standings, &catalog, session.now);
    let mut duplicates = sifted.duplicates().into_iter();
    let mut all = Vec::with_capacity(units.len());
    for unit in units {
        let entry = Entry::of(unit, &catalog);
        let answer = entry.map(|entry| known(session, &entry)).transpose()?.flatten();
        all.push(Present { answer, duplicates: duplicates.next().unwrap_or_default() });
    }
    Ok(all)
}

/// Adds the items of units to their tallies, and notes it.
fn add(
    session: &Session<'_>,
    topic: TopicId,
    token: i64,
    given: &[Vec<Event>],
    present: &[Present],
) -> Result<Placed> {
    let mut numbered = given.to_vec();
    for (unit, present) in numbered.iter_mut().zip(present) {
        present.duplicates.iter().for_each(|at| unit[*at].tally = None);
    }
    let placement = place(session, &mut numbered)?;
    let mut units = Vec::with_capacity(given.len());
    for (at, unit) in given.iter().enumerate().filter(|(at, _)| !placement.refused.contains_key(at)) {
        // What an idempotency key stands for is the event as it was given.
        let items = numbered[at].iter().map(|event| event.item);
        let events = unit.iter().cloned().zip(items).map(|(event, item)| Event { item, ..event }).collect();
        units.push(PlacedUnit { events, duplicates: present[at].duplicates.clone() });
    }
    let note = Note { at: session.now, token, topic, added: placement.added.into_iter().collect() };
    session.enter(Note::table(session), note.member());
    Ok(Placed { note, units, refused: placement.refused })
}

/// Stores placed units, unless somebody has given up waiting for them.
fn arrive(session: &Session<'_>, placed: &Placed) -> Result<Arrival> {
    if fate(session, placed.note.token)? == Some(Fate::Refused) {
        return Err(Error::unavailable("the emit took too long, and was given up", "emit again"));
    }
    let catalog = session.catalog();
    let units: Vec<Vec<Event>> = placed.units.iter().map(|unit| unit.events.clone()).collect();
    units.iter().flatten().try_for_each(|event| check_end(&catalog, event))?;
    let is_new = |(present, unit): (&Present, &PlacedUnit)| {
        present.answer.is_none() && present.duplicates == unit.duplicates
    };
    if !present(session, &units)?.iter().zip(&placed.units).all(is_new) {
        return Ok(Arrival::OtherwisePresent);
    }
    decide(session, placed.note.token, Fate::Stored);
    emit::emit(session, &units).map(Arrival::Stored)
}

/// Refuses an event that is an item which nobody here would end: the site has not heard of a subscription yet, or home not when it added
/// the item that it has gone.
fn check_end(catalog: &Catalog, event: &Event) -> Result<()> {
    catalog.require_topic(&event.topic)?;
    let Some(item) = &event.item else { return Ok(()) };
    let consumers = catalog.views().get(&event.topic).map_or(&[][..], |view| &view.subscriptions);
    if consumers.iter().any(|one| one.id == item.subscription && one.filter.passes(event)) {
        return Ok(());
    }
    Err(Error::not_found(
        format!("subscription {} does not get the event that it is to end", item.subscription),
        "try again, or name another subscription",
    ))
}

/// What became of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stored,
    Refused,
}

fn fates(session: &Session<'_>) -> Vec<u8> {
    session.key("fates")
}

/// Tokens by the time at which they are forgotten.
fn fates_by_expiry(session: &Session<'_>) -> Vec<u8> {
    session.key("fates_by_expiry")
}

fn fate(session: &Session<'_>, token: i64) -> Result<Option<Fate>> {
    let stored = session.get(&fates(session), token.to_string().as_bytes())?;
    Ok(stored.map(|fate| if fate == b"stored" { Fate::Stored } else { Fate::Refused }))
}

fn decide(session: &Session<'_>, token: i64, fate: Fate) {
    let (name, kept) = match fate {
        Fate::Stored => ("stored", STORED),
        Fate::Refused => ("refused", REFUSED),
    };
    session.put(fates(session), token.to_string(), name.into());
    session.enter(fates_by_expiry(session), Tuple::new().with(&[session.now.after(kept).0, token]).bytes());
}

/// True if the events under a token are stored. If they are not, they never will be.
fn has_arrived(session: &Session<'_>, token: i64) -> Result<bool> {
    let known = fate(session, token)?;
    if known.is_none() {
        decide(session, token, Fate::Refused);
    }
    Ok(known == Some(Fate::Stored))
}

/// Forgets tokens whose time is over. True if there may be more.
pub(super) fn forget_fates(session: &Session<'_>) -> Result<bool> {
    let to = Tuple::new().with(&[session.now.0]).bytes();
    let ended = session.range(&fates_by_expiry(session), (Tuple::new().bytes(), to), SOME)?;
    let more = ended.len() == SOME;
    for member in ended {
        let mut columns = Columns(&member);
        let _time = columns.number();
        session.remove(fates(session), columns.number().to_string());
        session.withdraw(fates_by_expiry(session), member);
    }
    Ok(more)
}
