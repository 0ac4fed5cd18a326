//! Events that are items of tallies: they are added to their tallies at home before they are emitted where their topic is.
//!
//! Home notes under a token what it has added, until it is known that the events are stored. The step that stores them writes the token
//! down beside them. If nobody comes back to say so, a sweep asks the site: either the token is there, or the site takes it as refused,
//! so that nobody can store the events any more; then their items end at home, so that no tally waits for what will never come. That can
//! only be an emit whose caller got no receipt.

use super::SpreadStore;
use crate::error::{Error, Result};
use crate::model::event::Event;
use crate::model::id::{Incarnation, TallyId, TopicId};
use crate::model::tally::{Ack, Ending, TallyItem};
use crate::model::time::Time;
use crate::plan::tally::gather;
use crate::store::catalog::Catalog;
use crate::store::emit::{TRIES, restless};
use crate::store::idempotency::Entry;
use crate::store::redis::catalog::{read, written};
use crate::store::redis::emit::{self, known};
use crate::store::redis::session::{Session, number};
use crate::store::redis::tally::{ack, place::place};
use crate::store::redis::tuple::{Columns, Tuple};
use crate::store::redis::unique;
use crate::store::unique::{Sifted, names};
use crate::store::verbs::Emission;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long nobody asks what became of an emit: as long as its caller may be at it.
const PATIENCE: Duration = Duration::from_secs(60);
/// For how long a refused token is remembered.
const REFUSED: Duration = Duration::from_secs(24 * 3600);
/// How many tokens one sweep asks for.
const SOME: usize = 100;

/// What home notes: the topic, and the items as pairs of tally and number.
type Note = (i64, Vec<(i64, u64)>);

/// What home added, by time and token.
fn notes(session: &Session<'_>) -> Vec<u8> {
    session.key("placed")
}

/// Tokens of which a site has the events, and those that it refuses.
fn arrived(session: &Session<'_>) -> Vec<u8> {
    session.key("arrived")
}

fn refused(session: &Session<'_>) -> Vec<u8> {
    session.key("refused")
}

/// What a site has already of a unit.
#[derive(Debug, Default)]
struct There {
    /// The answer that its idempotency key already has.
    answer: Option<Result<Emission>>,
    /// Places of events that are there because of their unique keys.
    duplicates: BTreeSet<usize>,
}

/// Units of which home has added the items, but for those that it refused.
struct Placed {
    units: Vec<Vec<Event>>,
    /// For each of them, the events that are no items, because they are there already.
    duplicates: Vec<BTreeSet<usize>>,
    /// By place among all that were given.
    refused: BTreeMap<usize, Error>,
    /// The entry at home.
    note: Vec<u8>,
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
            let nothing = units.iter().map(|_| There::default()).collect();
            if let Some(answers) = self.place_and_emit(topic, units, nothing, now).await? {
                return Ok(answers);
            }
        }
        // One after the other: of two with one key, the second has to see what the first one stored.
        let mut answers = Vec::with_capacity(units.len());
        for unit in units.chunks(1) {
            answers.push(self.emit_one_placed(topic, unit, now).await?);
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
            let mut there = self.site(topic).read(now, |session| there(session, unit)).await?;
            if let Some(answer) = there.iter_mut().find_map(|there| there.answer.take()) {
                return Ok(answer);
            }
            if let Some(mut answers) = self.place_and_emit(topic, unit, there, now).await? {
                return answers.pop().ok_or_else(restless);
            }
        }
        Err(restless())
    }

    /// Nothing, if the site has something else of these units by now.
    async fn place_and_emit(
        &self,
        topic: TopicId,
        units: &[Vec<Event>],
        there: Vec<There>,
        now: Option<Time>,
    ) -> Result<Option<Vec<Result<Emission>>>> {
        let token = Incarnation::random().0;
        let step = |session: &Session<'_>| add(session, topic, token, units, &there);
        let mut placed = self.home.add(now, step).await?;
        let step = |session: &Session<'_>| arrive(session, token, &placed);
        let stored = self.site(topic).add(now, step).await;
        // Also after an error: it may say that nothing is stored, or leave that open.
        if let Err(error) = self.resolve(&placed.note, now).await {
            tracing::debug!(error = %error, "what became of an emit is asked later");
        }
        let Some(stored) = stored? else { return Ok(None) };
        let mut stored = stored.into_iter();
        let answer =
            |at| placed.refused.remove(&at).map_or_else(|| stored.next(), |error| Some(Err(error)));
        Ok(Some((0..units.len()).filter_map(answer).collect()))
    }

    /// Asks what became of emits that nobody came back from.
    pub(super) async fn resolve_all(&self, now: Option<Time>) -> Result<()> {
        let old = |session: &Session<'_>| {
            let to = Tuple::new().with(&[session.now.before(PATIENCE).0]).bytes();
            session.range(&notes(session), (Tuple::new().bytes(), to), SOME)
        };
        for note in self.home.read(now, old).await? {
            self.resolve(&note, now).await?;
        }
        Ok(())
    }

    /// Sees to it that either the events of a note are stored, or none of them ever will be, and that home knows.
    async fn resolve(&self, note: &[u8], now: Option<Time>) -> Result<()> {
        let mut columns = Columns(note);
        let (_, token) = (columns.number(), columns.number());
        let (topic, items): Note = read(columns.load())?;
        let site = self.site(TopicId(topic));
        let is_stored = site.write(now, |session: &Session<'_>| has_arrived(session, token)).await?;
        let settle = |session: &Session<'_>| {
            if !is_stored {
                ack::end(session, &ends(&items), false, 0)?;
            }
            session.withdraw(notes(session), note.to_vec());
            Ok(())
        };
        self.home.write(now, settle).await?;
        let forget = |session: &Session<'_>| {
            session.remove(arrived(session), token.to_string());
            Ok(())
        };
        site.write(now, forget).await
    }
}

/// What the site has already of each unit.
fn there(session: &Session<'_>, units: &[Vec<Event>]) -> Result<Vec<There>> {
    let catalog = session.catalog();
    let mut answers = Vec::with_capacity(units.len());
    for unit in units {
        let entry = Entry::of(unit, &catalog);
        answers.push(entry.map(|entry| known(session, &entry)).transpose()?.flatten());
    }
    let standings = unique::standings(session, &names(units.iter().flatten(), &catalog))?;
    let duplicates = Sifted::new(&mut units.to_vec(), &standings, &catalog, session.now).duplicates();
    let mut duplicates = duplicates.into_iter();
    let there = |answer| There { answer, duplicates: duplicates.next().unwrap_or_default() };
    Ok(answers.into_iter().map(there).collect())
}

/// Adds the items of units to their tallies, and notes it.
fn add(
    session: &Session<'_>,
    topic: TopicId,
    token: i64,
    given: &[Vec<Event>],
    there: &[There],
) -> Result<Placed> {
    let mut numbered = given.to_vec();
    for (unit, there) in numbered.iter_mut().zip(there) {
        there.duplicates.iter().for_each(|at| unit[*at].tally = None);
    }
    let refused = place(session, &mut numbered)?.refused;
    let kept: Vec<usize> = (0..given.len()).filter(|at| !refused.contains_key(at)).collect();
    // What an idempotency key stands for is the event as it was given.
    let unit = |at: &usize| {
        let items = numbered[*at].iter().map(|event| event.item.clone());
        given[*at].iter().cloned().zip(items).map(|(event, item)| Event { item, ..event }).collect()
    };
    let units: Vec<Vec<Event>> = kept.iter().map(unit).collect();
    let items = units.iter().flatten().filter_map(|event| event.item.as_ref());
    let note: Note = (topic.0, items.map(|item| (item.item.tally.0, item.item.number)).collect());
    let note = Tuple::new().with(&[session.now.0, token]).carrying(&written(&note));
    session.enter(notes(session), note.clone());
    let duplicates = kept.iter().map(|at| there[*at].duplicates.clone()).collect();
    Ok(Placed { units, duplicates, refused, note })
}

fn ends(items: &[(i64, u64)]) -> Vec<Ack> {
    let item = |(tally, number): &(i64, u64)| TallyItem { tally: TallyId(*tally), number: *number };
    gather(items.iter().map(|one| (item(one), Ending::Done)).collect())
}

/// Stores units, unless somebody has given up waiting for them. Nothing, if something is otherwise here than at home when the items were
/// added: some of the events are there already, or whoever was to end the items no longer gets them.
fn arrive(session: &Session<'_>, token: i64, placed: &Placed) -> Result<Option<Vec<Result<Emission>>>> {
    if session.get(&refused(session), token.to_string().as_bytes())?.is_some() {
        return Err(Error::unavailable("the emit took too long, and was given up", "emit again"));
    }
    let there = there(session, &placed.units)?;
    let is_new = |(there, duplicates): (&There, &BTreeSet<usize>)| {
        there.answer.is_none() && there.duplicates == *duplicates
    };
    let catalog = session.catalog();
    if !there.iter().zip(&placed.duplicates).all(is_new)
        || !placed.units.iter().flatten().all(|event| can_end(&catalog, event))
    {
        return Ok(None);
    }
    session.put(arrived(session), token.to_string(), Vec::new());
    emit::emit(session, &placed.units).map(Some)
}

/// False if an event is an item that nobody here would end.
fn can_end(catalog: &Catalog, event: &Event) -> bool {
    let Some(item) = &event.item else { return true };
    let consumers = catalog.views().get(&event.topic).map_or(&[][..], |view| &view.subscriptions);
    consumers.iter().any(|one| one.id == item.subscription && one.filter.passes(event))
}

/// True if the events under a token are stored. If they are not, they never will be.
fn has_arrived(session: &Session<'_>, token: i64) -> Result<bool> {
    let field = token.to_string();
    if session.get(&arrived(session), field.as_bytes())?.is_some() {
        return Ok(true);
    }
    session.put(refused(session), field, session.now.0.to_string().into_bytes());
    Ok(false)
}

/// Forgets what was refused long ago: nobody has been on the way for so long.
pub(super) fn forget_refused(session: &Session<'_>) -> Result<()> {
    let table = refused(session);
    for (field, at) in session.all(&table)? {
        let at = number(Some(at));
        if at <= session.now.before(REFUSED).0 {
            session.remove(table.clone(), field);
        }
    }
    Ok(())
}
