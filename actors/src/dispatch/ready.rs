//! Runs that may be handed out, by what they need: fair over workspaces, then over sessions.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::ids::SessionId;
use crate::session::payload::WorkspaceRef;

/// Below this many entries a line is not tidied.
const TIDY_MIN: usize = 64;

/// A place in a line. Withdrawn runs leave theirs behind, to be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Whose run.
    pub(crate) session: SessionId,
    /// Which offer of it.
    pub(crate) number: u64,
}

/// The runs of one target: a line for each workspace, the workspace served longest ago first.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    lines: HashMap<WorkspaceRef, Line>,
    order: BTreeSet<(u64, WorkspaceRef)>,
}

#[derive(Debug)]
struct Line {
    tickets: VecDeque<Ticket>,
    served: u64,
    tidy_at: usize,
}

impl Ready {
    /// Joins the end of the workspace's line. A new line counts as served at `turn`: whoever
    /// comes back again and again does not pass those that wait.
    pub(crate) fn push(
        &mut self,
        workspace: WorkspaceRef,
        ticket: Ticket,
        turn: u64,
        valid: impl Fn(&Ticket) -> bool,
    ) {
        let line = self.lines.entry(workspace).or_insert_with(|| Line {
            tickets: VecDeque::new(),
            served: turn,
            tidy_at: TIDY_MIN,
        });
        if line.tickets.len() >= line.tidy_at {
            line.tickets.retain(|t| valid(t));
            line.tidy_at = (line.tickets.len() * 2).max(TIDY_MIN);
        }
        line.tickets.push_back(ticket);
        self.order.insert((line.served, workspace));
    }

    /// When the workspace that is next was served; `None` = nothing valid waits.
    pub(crate) fn next(
        &mut self,
        only: Option<WorkspaceRef>,
        valid: impl Fn(&Ticket) -> bool,
    ) -> Option<(u64, WorkspaceRef)> {
        loop {
            let (served, workspace) = match only {
                Some(ws) => (self.lines.get(&ws)?.served, ws),
                None => *self.order.first()?,
            };
            let line = self.lines.get_mut(&workspace)?;
            while line.tickets.front().is_some_and(|t| !valid(t)) {
                line.tickets.pop_front();
            }
            if !line.tickets.is_empty() {
                return Some((served, workspace));
            }
            self.order.remove(&(served, workspace));
            self.lines.remove(&workspace);
            if only.is_some() {
                return None;
            }
        }
    }

    /// Takes the first ticket of the workspace's line, which must be valid, and puts the
    /// workspace behind the others.
    pub(crate) fn pop(&mut self, workspace: WorkspaceRef, turn: u64) -> Option<Ticket> {
        let line = self.lines.get_mut(&workspace)?;
        let ticket = line.tickets.pop_front();
        self.order.remove(&(line.served, workspace));
        line.served = turn;
        self.order.insert((turn, workspace));
        ticket
    }
}
