/* Snapshots for tests: a pool with a template "base", and parts to save. */
#pragma once

#include "fixture.h"

#define SNAPFIX_DISK (64ull << 20)

/* Opens the pool and puts the template there; for cmocka_run_group_tests. */
int snapfix_setup(void **state);
int snapfix_teardown(void **state);
void snapfix_template(const char *id, const char *content);
/* disk.img (SNAPFIX_DISK bytes, two pieces of data that depend on seed), box. */
void snapfix_fill(const char *dir, unsigned char seed);
/* mem/ with two images, one larger than what a commit hashes, and tmpfs.tar. */
void snapfix_fill_memory(const char *dir, unsigned char seed);
/* Commits it with template "base", generation 7 and a config with a note. */
void snapfix_commit(const char *id, bool memory);
/* begin, fill and commit. */
void snapfix_make(const char *id, bool memory, unsigned char seed);
/* Changes one byte of a file in the snapshot. */
void snapfix_damage(const char *id, const char *part, long at);
