"""The Lab view: one step of a recovery at a time, why it was taken, and what it rests on. Holds nothing but names."""
