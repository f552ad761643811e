/* Suffix decoding as a source of draft tokens (world/draft.h; Oliaro et al., SuffixDecoding, arXiv 2411.04975): what
 * stood behind the longest match in the request's own prompt and answer, or in what its tenant's requests have said
 * before. Each of the two is a suffix tree; the guess with the higher score counts, the request's own among equals.
 *
 * The trees are made beside the steps, by one thread: that of a request is handed to it with the prompt, and belongs to
 * the engine once it comes back (until then there is the tenant's only), which adds what the request says as a step is
 * taken in; what requests have said goes into the tenants' trees in short slices under a latch. The engine's thread
 * never waits for it: where it is inside, a guess does without.
 * Nothing is made unless a policy has asked for guesses lately, so a policy that does not draft pays nothing.
 *
 * Made by a composition root before the engine, freed after it; the source's calls are the engine thread's.
 * Invariant: a tenant's guesses, and how long they take, do not depend on what other tenants have said, except through
 * how much of its own is kept. */
#ifndef DRAFT_SUFFIX_H
#define DRAFT_SUFFIX_H

#include "engine/base/err.h"
#include "engine/draft/suffix_cache.h"
#include "engine/draft/suffix_file.h"
#include "engine/world/draft.h"

struct suffix;

struct suffix_opts {
    size_t bytes;                        /* of the tenants' trees; the requests' own have as many again */
    bool prompts;                        /* prompts go into the tenants' trees, too */
    bool no_outputs;                     /* answers do not */
    float min_share;                     /* a guess ends where its share of what followed is less; 0: 0.1 */
    const char *file;                    /* what was said before: read (suffix_file.h), or made. NULL: none. Borrowed */
    struct suffix_vocabulary vocabulary; /* with a file */
};

/* E_INPUT: the file is no such file, is damaged, or of another vocabulary. E_SYS, E_NOTFOUND: it cannot be made. */
int suffix_open(struct suffix **out, const struct suffix_opts *o, struct err *e);
void suffix_close(struct suffix *s); /* NULL is fine; no request is left */
void suffix_source(struct suffix *s, struct draft_source *to);
/* Writes the file with all that has been said up to now, or puts in place of all that what the file says. Any thread
 * but the engine's, which waits until it is done. E_UNSUPPORTED: there is no file. E_NOTFOUND, E_INPUT: see
 * suffix_file_read; nothing has changed. */
int suffix_save(struct suffix *s, struct suffix_file_count *count, struct err *e);
int suffix_load(struct suffix *s, struct suffix_file_count *count, struct err *e);
/* For tests: returns once the thread has nothing to do. */
void suffix_settle(struct suffix *s);
struct suffix_cache_stats suffix_stats(struct suffix *s);

#endif
