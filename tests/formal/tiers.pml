/* KV over three tiers: one rank with its inbox, the thread beside it, a disk with its two threads, and the engine's
 * books of blocks (engine/world/world.c, tiers.c, kv.c, engine/exec/transfer.c, disk_kv.c). README.md says what is
 * claimed. A text is one block long; what a block's bytes are is modelled: whoever writes it makes it TORN first.
 *
 * Sizes (-D): REQUESTS (each of text 1 or 2), RANK, HOST, DISK (blocks), SWAPS, SAVES, CANCELS, RESETS, BAD (reads of
 * the disk that fail), RESTARTED (text 1 is on the disk from before). */
#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef RANK
#define RANK 2
#endif
#ifndef HOST
#define HOST 2
#endif
#ifndef DISK
#define DISK 1
#endif
#ifndef SWAPS
#define SWAPS 1
#endif
#ifndef SAVES
#define SAVES 2
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef RESETS
#define RESETS 0
#endif
#ifndef BAD
#define BAD 0
#endif

#define BLOCKS (RANK + HOST + DISK)
#define JOBS 4
#define NONE 15
#define TORN 3

/* ---- blocks: the books, and what the bytes are */
byte refs[BLOCKS], key[BLOCKS], has[BLOCKS];

/* ---- jobs: data, the engine's until posted and again when done */
byte j_from[JOBS], j_to[JOBS], j_key[JOBS], j_req[JOBS]; /* j_from NONE: a step, which computes text j_key; j_key 0: */
bit j_used[JOBS], j_held[JOBS], j_old[JOBS], j_bad[JOBS]; /* nothing is found by it. held: its end; old: from before */
                                                          /* a reset */
chan inbox = [JOBS] of { byte };
chan transfer = [JOBS] of { byte };
chan reads = [JOBS] of { byte };
chan writes = [JOBS] of { byte };
chan done = [JOBS] of { byte };

/* ---- requests */
#define COMES 0   /* not there yet */
#define WAITS 1   /* has nothing */
#define FETCHED 2 /* waits for the disk */
#define RUNS 3    /* has a block of the rank, computed or on its way in the inbox */
#define STEPS 4   /* in a step */
#define LEAVES 5  /* swapped out: has a block of host memory, which is being written */
#define STAYS 6   /* there */
#define RETURNS 7 /* has a block of the rank, which is being written beside the steps */
#define GONE 8
byte state[REQUESTS], text[REQUESTS], own[REQUESTS], moving[REQUESTS];
bit sought[REQUESTS], gone[REQUESTS]; /* gone: it ends when its step has */

byte swaps = SWAPS, saves = SAVES, cancels = CANCELS, resets = RESETS, bad = BAD;

/* ================================================================ threads */

/* A copy, or a step: the destination is torn in between. The source must not change meanwhile. */
inline begin_write(j)
{
    has[j_to[j]] = TORN
}

inline end_write(j)
{
    if
    :: j_from[j] == NONE -> has[j_to[j]] = j_key[j]
    :: j_from[j] != NONE && j_bad[j] -> skip
    :: else -> has[j_to[j]] = has[j_from[j]]
    fi;
    done ! j
}

proctype worker(chan in)
{
    byte j;
end:
    do
    :: atomic { in ? j ->
        if
        /* a step over a cached beginning: it reads what is there */
        :: j_from[j] == j_to[j] -> assert(has[j_to[j]] == j_key[j]); done ! j; j = 0; goto end
        :: else -> begin_write(j)
        fi }
        atomic { end_write(j); j = 0 }
    od
}

/* ================================================================ books */

#define IS_RANK(b) ((b) < RANK)
#define IS_HOST(b) ((b) >= RANK && (b) < RANK + HOST)
#define IS_DISK(b) ((b) >= RANK + HOST)

/* The block of a tier with this key, in `it`; NONE. */
inline look_up(first, n, what)
{
    it = NONE; k = first;
    do
    :: k < first + n && key[k] == what -> it = k; break
    :: k < first + n && key[k] != what -> k++
    :: else -> break
    od;
    k = 0
}

/* A free or cached block of a tier, any of them, for itself alone, in `it`; NONE. */
inline take(first, n)
{
    it = NONE; k = first;
    do
    :: k < first + n && refs[k] == 0 -> it = k; break
    :: k < first + n && (refs[k] != 0 || key[k] == 0) -> k++
    :: k < first + n && refs[k] == 0 && key[k] != 0 -> k++
    :: k >= first + n -> break
    od;
    k = 0;
    if
    :: it != NONE -> key[it] = 0; refs[it] = 1
    :: else
    fi
}

inline drop(b)
{
    assert(refs[b] > 0);
    refs[b]--
}

inline publish(b, what)
{
    look_up((IS_RANK(b) -> 0 : (IS_HOST(b) -> RANK : RANK + HOST)),
            (IS_RANK(b) -> RANK : (IS_HOST(b) -> HOST : DISK)), what);
    if
    :: it == NONE ->
        assert(refs[b] > 0 && has[b] == what);   /* what is found is whole */
        key[b] = what
    :: else
    fi
}

/* A free job in `j`; NONE. */
inline new_job()
{
    j = 0;
    do
    :: j < JOBS && j_used[j] -> j++
    :: j < JOBS && !j_used[j] -> j_used[j] = 1; j_held[j] = 0; j_old[j] = 0; j_bad[j] = 0; break
    :: j == JOBS -> j = NONE; break
    od
}

#define JOB_FREE (!j_used[0] || !j_used[1] || !j_used[2] || !j_used[3])

inline post(to, f, t, what, r)
{
    new_job();
    j_from[j] = f; j_to[j] = t; j_key[j] = what; j_req[j] = r;
    to ! j;
    j = 0
}

/* What the request has goes; it is no more. */
inline end_request(r)
{
    if
    :: own[r] != NONE -> drop(own[r])
    :: else
    fi;
    own[r] = NONE; state[r] = GONE
}

/* Its first block: on the rank, in host memory, or computed. */
inline begin(r)
{
    look_up(0, RANK, text[r]);
    if
    :: it != NONE -> refs[it]++; own[r] = it; state[r] = RUNS
    :: else ->
        look_up(RANK, HOST, text[r]);
        other = it;
        if
        :: other != NONE -> refs[other]++       /* held before anything is taken */
        :: else
        fi;
        take(0, RANK);
        if
        :: it == NONE && other != NONE -> refs[other]-- /* no room now */
        :: it == NONE && other == NONE -> skip
        :: it != NONE && other != NONE ->
            own[r] = it; state[r] = RUNS; moving[r]++;
            new_job();
            j_from[j] = other; j_to[j] = it; j_key[j] = 0; j_req[j] = r;
#ifndef MUTANT_INBOX_END_NOT_HELD
            refs[it]++; j_held[j] = 1;
#endif
            inbox ! j; j = 0
        :: it != NONE && other == NONE ->
            own[r] = it; state[r] = STEPS;
            post(inbox, NONE, it, text[r], r)
        fi
    fi;
    other = 0; it = 0
}

/* ================================================================ what has ended */

inline step_done(d)
{
    if
    :: gone[j_req[d]] -> end_request(j_req[d])
    :: else -> state[j_req[d]] = RUNS; publish(own[j_req[d]], j_key[d])
    fi
}

/* Of cached blocks: down, or up from the disk. */
inline saved(d)
{
    if
    :: j_bad[d] && key[j_from[d]] == j_key[d] -> key[j_from[d]] = 0
    :: else
    fi;
#ifndef MUTANT_RESET_FORGOTTEN
    if
    :: j_old[d] && key[j_from[d]] == j_key[d] -> key[j_from[d]] = 0
    :: else
    fi;
#endif
    if
#ifdef MUTANT_BAD_IS_FOUND
    :: key[j_from[d]] == j_key[d] || j_bad[d] ->
#else
    :: key[j_from[d]] == j_key[d] ->
#endif
        assert(!j_old[d]);      /* what was under way when the cache was reset is not found */
        publish(j_to[d], j_key[d])
    :: else
    fi;
    drop(j_to[d])
}

inline copy_done(d)
{
    r = j_req[d];
    if
    :: j_key[d] && r == NONE -> saved(d)
    :: j_key[d] && r != NONE && IS_DISK(j_from[d]) -> saved(d)
    :: j_key[d] && r != NONE && !IS_DISK(j_from[d]) ->      /* swapped out: found there from now on */
        if
        :: state[r] == LEAVES && own[r] == j_to[d] -> publish(j_to[d], j_key[d])
        :: else
        fi;
        drop(j_to[d])
    :: !j_key[d] && j_held[d] -> drop(j_to[d])
    :: else
    fi;
    drop(j_from[d]);
    if
    :: r != NONE && state[r] != GONE ->
        moving[r]--;
        if
        :: state[r] == FETCHED -> state[r] = WAITS
        :: state[r] == LEAVES -> state[r] = STAYS
        :: state[r] == RETURNS -> state[r] = RUNS
        :: else
        fi
    :: else
    fi;
    r = 0
}

/* ================================================================ engine */

#if REQUESTS == 1
#define ALL_GONE (state[0] == GONE)
#elif REQUESTS == 2
#define ALL_GONE (state[0] == GONE && state[1] == GONE)
#else
#define ALL_GONE (state[0] == GONE && state[1] == GONE && state[2] == GONE)
#endif
#define QUIET (!j_used[0] && !j_used[1] && !j_used[2] && !j_used[3])

/* Could anything be done for it now? If not it waits for what is under way: a wait without an end is a deadlock. */
#if RANK > 1
#define ROOM (refs[0] == 0 || refs[1] == 0)
#define AT_HAND(r) (key[0] == text[r] || key[1] == text[r])
#else
#define ROOM (refs[0] == 0)
#define AT_HAND(r) (key[0] == text[r])
#endif
#define CAN(r) (state[r] == COMES || (state[r] != GONE && cancels > 0) || \
                (state[r] == WAITS && JOB_FREE && (!sought[r] || ROOM || AT_HAND(r))) || \
                (state[r] == RUNS && (!moving[r] || JOB_FREE)) || (state[r] == STAYS && JOB_FREE && ROOM))

inline for_request(r)
{
    if
    :: state[r] == COMES ->
        if
        :: text[r] = 1
        :: text[r] = 2
        fi;
        own[r] = NONE; state[r] = WAITS
    :: state[r] == WAITS && !sought[r] && JOB_FREE ->       /* the disk */
        sought[r] = 1;
        look_up(RANK + HOST, DISK, text[r]);
        other = it;
        look_up(RANK, HOST, text[r]);
        if
        :: other != NONE && it == NONE ->
            refs[other]++;
            take(RANK, HOST);
            if
            :: it == NONE -> refs[other]--
            :: else ->
                state[r] = FETCHED; moving[r]++;
                new_job();
                j_from[j] = other; j_to[j] = it; j_key[j] = text[r]; j_req[j] = r; j_held[j] = 1;
                if
                :: bad > 0 -> bad--; j_bad[j] = 1
                :: j_bad[j] = 0
                fi;
                reads ! j; j = 0
            fi
        :: else
        fi;
        other = 0; it = 0
    :: state[r] == WAITS && JOB_FREE -> begin(r)
    :: state[r] == RUNS && JOB_FREE -> state[r] = STEPS;    /* one more step, which reads what it has */
        post(inbox, own[r], own[r], text[r], r)
    :: state[r] == RUNS && !moving[r] -> end_request(r)
    :: state[r] == RUNS && !moving[r] && swaps > 0 && JOB_FREE ->
        take(RANK, HOST);
        if
        :: it != NONE ->
            swaps--;
            refs[it]++;                                     /* the request's, and the copy's until it has ended */
            new_job();
            j_from[j] = own[r]; j_to[j] = it; j_key[j] = text[r]; j_req[j] = r; j_held[j] = 1;
#ifdef MUTANT_FREES_TOO_EARLY
            refs[own[r]]--; refs[own[r]]++;
            key[own[r]] = 0; refs[own[r]] = 0;
#endif
            transfer ! j; j = 0;
            own[r] = it; state[r] = LEAVES; moving[r]++
        :: else
        fi;
        it = 0
    :: state[r] == STAYS && JOB_FREE ->
        take(0, RANK);
        if
        :: it != NONE ->
            new_job();
            j_from[j] = own[r]; j_to[j] = it; j_key[j] = 0; j_req[j] = r;
#ifndef MUTANT_END_NOT_HELD
            refs[it]++; j_held[j] = 1;
#endif
            transfer ! j; j = 0;
            own[r] = it; state[r] = RETURNS; moving[r]++
        :: else
        fi;
        it = 0
    :: cancels > 0 && state[r] != COMES && state[r] != GONE ->
        cancels--;
        if
        :: state[r] == STEPS -> gone[r] = 1
        :: else -> end_request(r)
        fi
    :: else
    fi
}

/* A cached block goes one tier down, if that lacks it. */
inline save(b, first, n, to)
{
    look_up(first, n, key[b]);
    if
    :: it == NONE ->
        saves--;
        refs[b]++;
        take(first, n);
        if
        :: it == NONE -> refs[b]--
        :: else -> post(to, b, it, key[b], NONE)
        fi
    :: else
    fi;
    it = 0
}

inline forget_all()
{
    k = 0;
    do
    :: k < BLOCKS && refs[k] == 0 -> key[k] = 0; k++
    :: k < BLOCKS && refs[k] != 0 -> k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < JOBS -> j_old[k] = 1; k++
    :: else -> break
    od;
    k = 0
}

proctype engine()
{
    byte d, it, other, j, k, r;
    do
    :: atomic { done ? d ->
        if
        :: j_from[d] == NONE || j_from[d] == j_to[d] -> step_done(d)
        :: else -> copy_done(d)
        fi;
        j_used[d] = 0; j_from[d] = 0; j_to[d] = 0; j_key[d] = 0; j_req[d] = 0; d = 0 }
    :: atomic { CAN(0) -> for_request(0) }
#if REQUESTS > 1
    :: atomic { CAN(1) -> for_request(1) }
#endif
#if REQUESTS > 2
    :: atomic { CAN(2) -> for_request(2) }
#endif
    :: atomic { saves > 0 && JOB_FREE && key[0] && refs[0] == 0 -> save(0, RANK, HOST, transfer) }
    :: atomic { saves > 0 && JOB_FREE && key[RANK] && refs[RANK] == 0 -> save(RANK, RANK + HOST, DISK, writes) }
    :: atomic { resets > 0 -> resets--; forget_all() }
    /* all have ended, nothing is under way: nothing is held, and what is found is whole */
    :: atomic { ALL_GONE && QUIET ->
        k = 0;
        do
        :: k < BLOCKS -> assert(refs[k] == 0 && (key[k] == 0 || has[k] == key[k])); k++
        :: else -> break
        od;
        break }
    od
}

init
{
    atomic {
#ifdef RESTARTED
        key[RANK + HOST] = 1; has[RANK + HOST] = 1;
#endif
        run worker(inbox); run worker(transfer); run worker(reads); run worker(writes); run engine()
    }
}
