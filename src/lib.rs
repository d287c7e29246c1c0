//! A durable runtime for agent sessions.

pub mod auth;
pub mod catalog;
pub mod config;
pub mod error;
pub mod telemetry;
