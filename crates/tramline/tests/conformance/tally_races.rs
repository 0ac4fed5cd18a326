//! Completion in any race.

use crate::bed::*;

conformance![nothing_yet,];

async fn nothing_yet(_bed: Bed) {}
