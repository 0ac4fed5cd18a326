//! The state machine that histories are drawn from: which step may come next, as far as that is known before the store has
//! answered. What the store may answer is for [`crate::model`] to say.

use crate::setting::{Setting, setting};
use crate::step::{Step, step};
use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

/// How a history has gone so far.
#[derive(Clone)]
pub(crate) struct Course {
    pub(crate) setting: Setting,
    has_emitted: bool,
    has_claimed: bool,
    has_late: bool,
}

impl Course {
    pub(crate) fn new(setting: Setting) -> Course {
        Course { setting, has_emitted: false, has_claimed: false, has_late: false }
    }
}

impl std::fmt::Debug for Course {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.setting.fmt(f)
    }
}

impl ReferenceStateMachine for Course {
    type State = Course;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Course> {
        setting().prop_map(Course::new).boxed()
    }

    fn transitions(_: &Course) -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn preconditions(course: &Course, step: &Step) -> bool {
        match step {
            Step::Settle { .. }
            | Step::SettleStale { .. }
            | Step::Extend { .. }
            | Step::Release { .. }
            | Step::Adopt { .. } => course.has_claimed,
            Step::Cancel { .. } | Step::Resend { .. } | Step::Revive { .. } | Step::ReleaseParked { .. } => {
                course.has_emitted
            }
            Step::Subscribe => !course.has_late,
            Step::Backfill => course.has_late,
            _ => true,
        }
    }

    fn apply(mut course: Course, step: &Step) -> Course {
        match step {
            Step::Emit(_) => course.has_emitted = true,
            Step::Claim { .. } => course.has_claimed = course.has_emitted,
            Step::Subscribe => course.has_late = true,
            _ => {}
        }
        course
    }
}
