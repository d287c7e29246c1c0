//! One page of a read: bounded in items and bytes, never without its first item.

use crate::log::PageLimit;

#[derive(Debug)]
pub(super) struct Page<T> {
    items: Vec<T>,
    bytes: usize,
    limit: PageLimit,
}

impl<T> Page<T> {
    pub(super) fn new(limit: PageLimit) -> Self {
        Self {
            items: Vec::new(),
            bytes: 0,
            limit,
        }
    }

    /// Whether an item of so many bytes still fits; if so they are counted.
    pub(super) fn admits(&mut self, bytes: usize) -> bool {
        let total = self.bytes.saturating_add(bytes);
        let fits = self.items.is_empty()
            || (self.items.len() < self.limit.items_max && total <= self.limit.bytes_max);
        if fits {
            self.bytes = total;
        }
        fits
    }

    pub(super) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    pub(super) fn into_items(self) -> Vec<T> {
        self.items
    }
}
