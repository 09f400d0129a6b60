"""Runs attacks on blocks of images, judges what they propose, and keeps the evidence."""
