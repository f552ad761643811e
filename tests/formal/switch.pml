/* The switch protocol of the engine: one engine, four ranks, their inboxes. README.md says what is modelled, what is left out, and what is claimed.
 *
 * Sizes (-D): REQUESTS, STEPS (of each request), ORDERS (bind, release, by the policy), VERBS (preempt, migrate, by the policy), CANCELS, FAILURES, MEETINGS (of
 * the members in a step). START is the partition to begin with. Each budget is spent at any time or never, so what is verified holds for all smaller ones too. */
#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef ORDERS
#define ORDERS 2
#endif
#ifndef VERBS
#define VERBS 0
#endif
#ifndef CANCELS
#define CANCELS 0
#endif
#ifndef FAILURES
#define FAILURES 0
#endif
#ifndef MEETINGS
#define MEETINGS 2
#endif
#ifndef START
#define START 64
#endif

#define RANKS 4
#define ALL 15
/* The rank sets that may be groups, by index: {0} {1} {2} {3} {0,1} {2,3} {0,1,2,3}. */
#define SETS 7
#define NO_GROUP 7
#define RANKS_OF(g) ((g) < 4 -> 1 << (g) : ((g) == 4 -> 3 : ((g) == 5 -> 12 : 15)))
#define SIZE_OF(g) ((g) < 4 -> 1 : ((g) == 6 -> 4 : 2))
#define BIT(set, i) (((set) >> (i)) & 1)
#define PENDING 2
#define MOVES 2

/* What lies in an inbox: a step of group g is g; a move m is MOVE + m. */
#define MOVE 8
chan inbox[RANKS] = [5] of { byte };
chan engine_inbox = [7] of { byte };

/* ---- the world: only the engine writes it */
byte groups = START;            /* sets that are groups now */
byte in_step;                   /* of them: those with a step under way */
byte dead;                      /* ranks that were dropped */
byte o_ranks[PENDING], o_for[PENDING];  /* waiting orders (0: none); the request that a soft one is for, + 1 */
bit o_bind[PENDING], o_forced[PENDING];
mtype = { ABSENT, WAITING, RUNNING, ENDED };
mtype state[REQUESTS] = ABSENT;
byte group[REQUESTS] = NO_GROUP, place[REQUESTS], todo[REQUESTS] = STEPS, moving[REQUESTS], endings[REQUESTS];
bit busy[REQUESTS], cancelled[REQUESTS], parked[REQUESTS];
bit turn = 1, changed;          /* the engine has to look again; has to ask the policy again */
byte orders = ORDERS, verbs = VERBS, cancels = CANCELS;

/* ---- steps and moves: the engine's before the post and after the last member is done, the ranks' between */
byte s_left[SETS], s_failed[SETS];      /* members yet to end; the rank that failed by itself, + 1 */
bit s_error[SETS];                      /* some part ended with an error */
byte m_owner[MOVES], m_from[MOVES], m_to[MOVES], m_left[MOVES]; /* owner: request + 1; 0: no such move, and nothing holds its source */

/* ---- the communicators of the sets, and the devices */
byte arrived[SETS];
bit phase[SETS], aborted[SETS];
byte poisoned, failures = FAILURES;
#ifdef SOURCE_LIVES
byte tainted;                   /* requests whose KV was copied off a rank that had failed */
#endif

/* ================================================================ ranks */

/* No part of a step in a group that is not there. The mutant is to be caught by what comes of it, not by this. */
#ifdef MUTANT_POST_APART
#define MEMBER_OF_A_STEP skip
#else
#define MEMBER_OF_A_STEP assert(BIT(groups, g) && BIT(in_step, g) && s_left[g] > 0 && BIT(RANKS_OF(g), me))
#endif

inline end_part()
{
    s_left[g]--;
    if
    :: s_left[g] == 0 -> assert(nfull(engine_inbox)); engine_inbox ! g
    :: else
    fi;
    met = 0; sense = 0; g = 0
}

/* A device error: the rank is poisoned and its group is told. A peer that was told passes it on (in a layout of sp and tp, not all share one barrier). */
inline own_failure()
{
    s_error[g] = 1;
    s_failed[g] = me + 1;
#ifndef MUTANT_NO_ABORT
    aborted[g] = 1;
#endif
    end_part()
}

inline arrive()
{
    MEMBER_OF_A_STEP;
    sense = phase[g];
    arrived[g]++;
    if
    :: arrived[g] == SIZE_OF(g) && !aborted[g] -> arrived[g] = 0; phase[g] = 1 - phase[g]
    :: else
    fi
}

inline may_fail()
{
    if
    :: failures > 0 && !BIT(dead, me) -> failures--; poisoned = poisoned | (1 << me)
    :: true
    fi
}

inline do_move()
{
    assert(m_owner[g] != 0 && BIT(m_to[g], me)); /* the source is held until all have done */
#ifdef SOURCE_LIVES
    tainted = ((m_from[g] & poisoned) -> tainted | (1 << (m_owner[g] - 1)) : tainted);
#endif
    m_left[g]--;
    if
#ifdef MUTANT_FREE_EARLY
    :: true -> assert(nfull(engine_inbox)); engine_inbox ! MOVE + g
#else
    :: m_left[g] == 0 -> assert(nfull(engine_inbox)); engine_inbox ! MOVE + g
    :: else
#endif
    fi;
    g = 0
}

/* One task after the other. `met` counts the meetings behind it, + 1 while in a step. */
proctype rank(byte me)
{
    byte g, met;
    bit sense;
end:
    do
    :: atomic { met == 0 && nempty(inbox[me]) -> inbox[me] ? g;
        if
        :: g >= MOVE -> g = g - MOVE; do_move()
        :: else ->
            MEMBER_OF_A_STEP;
            if
            :: BIT(poisoned, me)
            :: else -> may_fail()
            fi;
            if
            :: BIT(poisoned, me) -> own_failure()
#ifdef MUTANT_LOCAL_EXIT
            :: !BIT(poisoned, me) && ((cancelled[0] && group[0] == g) || (cancelled[REQUESTS - 1] && group[REQUESTS - 1] == g)) -> end_part()
#endif
            :: else ->
                if
                :: SIZE_OF(g) == 1 -> end_part()
                :: else -> met = 1; arrive()
                fi
            fi
        fi }
    :: atomic { met > 0 && (phase[g] != sense || aborted[g]) -> /* the barrier lets go */
        if
        :: aborted[g] -> s_error[g] = 1; end_part()
        :: else ->
            may_fail();
            if
            :: BIT(poisoned, me) -> own_failure()
            :: else ->
                if
                :: met == MEETINGS -> end_part()
                :: else -> met++; arrive()
                fi
            fi
        fi }
    od
}

/* ================================================================ engine */

/* Held: a forced order waits for the group's ranks, it takes no step. Closed: any order does, it admits only those whom the order is for. */
#define WAITS(k, g) ((o_ranks[k] & RANKS_OF(g)) != 0)
#define HELD(g) ((WAITS(0, g) && o_forced[0]) || (WAITS(1, g) && o_forced[1]))
#define CLOSED(g) (WAITS(0, g) || WAITS(1, g))
#define FOR(k, g, r) (WAITS(k, g) && !o_forced[k] && o_for[k] == (r) + 1)
#define ADMITS(g, r) (BIT(groups, g) && (!CLOSED(g) || FOR(0, g, r) || FOR(1, g, r)))
#ifdef MUTANT_POST_APART
#define CAN_STEP(g) (BIT(groups, g) && !BIT(in_step, g) && !HELD(g) && apart != (g) + 1)
#else
#define CAN_STEP(g) (BIT(groups, g) && !BIT(in_step, g) && !HELD(g))
#endif
#define ANY_CAN_STEP (CAN_STEP(0) || CAN_STEP(1) || CAN_STEP(2) || CAN_STEP(3) || CAN_STEP(4) || CAN_STEP(5) || CAN_STEP(6))
#define GROUPED(i) (BIT(groups, i) || BIT(groups, 4 + (i) / 2) || BIT(groups, 6))
#define FREE(i) (!GROUPED(i) && !BIT(dead, i))
#define ANY_FREE (FREE(0) || FREE(1) || FREE(2) || FREE(3))
#define NO_ORDER (!o_ranks[0] && !o_ranks[1])
#define MAY_DECIDE (ANY_CAN_STEP || (ANY_FREE && NO_ORDER))
#define LIVE(r) (state[r] == WAITING || state[r] == RUNNING)
#define MAY_LEAVE(r) (LIVE(r) && !cancelled[r])
#define WORKS(r) (LIVE(r) && !busy[r])
#if REQUESTS == 1
#define HAS_WORK WORKS(0)
#define ALL_ENDED (state[0] == ENDED)
#else
#define HAS_WORK (WORKS(0) || WORKS(1))
#define ALL_ENDED (state[0] == ENDED && state[1] == ENDED)
#endif
/* Would carrying out order k interrupt nobody whom it has to wait for? */
#define KEEPS_WAITING(k, r) (state[r] == RUNNING && WAITS(k, group[r]) && (busy[r] || moving[r] || (!o_forced[k] && o_for[k] != (r) + 1)))
#define STEPPING(k, g) (BIT(in_step, g) && WAITS(k, g))
#define IN_STEP(k) (STEPPING(k, 0) || STEPPING(k, 1) || STEPPING(k, 2) || STEPPING(k, 3) || STEPPING(k, 4) || STEPPING(k, 5) || STEPPING(k, 6))
#ifdef MUTANT_EARLY_ORDER
#define READY(k) (o_ranks[k] != 0)
#elif defined(MUTANT_MOVING)
#define READY(k) (o_ranks[k] != 0 && !IN_STEP(k))
#elif REQUESTS == 1
#define READY(k) (o_ranks[k] != 0 && !IN_STEP(k) && !KEEPS_WAITING(k, 0))
#else
#define READY(k) (o_ranks[k] != 0 && !IN_STEP(k) && !KEEPS_WAITING(k, 0) && !KEEPS_WAITING(k, 1))
#endif

inline end_request(r)
{
    assert(LIVE(r) && !busy[r]);
    state[r] = ENDED;
    endings[r]++;
    assert(endings[r] == 1);
    group[r] = NO_GROUP; place[r] = 0; parked[r] = 0; cancelled[r] = 0
}

/* Back to the queue, its KV kept or not. */
inline preempt(r, keep)
{
    assert(!busy[r] && (state[r] == RUNNING || parked[r]));
    state[r] = WAITING;
    group[r] = NO_GROUP;
    parked[r] = (keep && place[r] != 0 -> 1 : 0);
#ifdef SOURCE_LIVES
    tainted = (parked[r] -> tainted : tainted & ~(1 << (r)));
#endif
    place[r] = (parked[r] -> place[r] : 0)
}

inline create(g)
{
    i = 0;
    do
    :: i < RANKS ->
        assert(!BIT(RANKS_OF(g), i) || FREE(i)); /* a rank is in one group at most */
        i++
    :: else -> break
    od;
    i = 0;
    groups = groups | (1 << g)
}

/* The copy is posted to the ranks that receive it, ahead of any step that they are given afterwards. */
inline migrate(r, to)
{
    assert(!busy[r] && !moving[r] && place[r] != 0 && place[r] != RANKS_OF(to));
    k = (m_owner[0] == 0 -> 0 : 1);
    assert(m_owner[k] == 0);
    m_owner[k] = r + 1; m_from[k] = place[r]; m_to[k] = RANKS_OF(to); m_left[k] = SIZE_OF(to);
    moving[r]++;
    place[r] = RANKS_OF(to);
    if
    :: state[r] == RUNNING -> group[r] = to
    :: else
    fi;
    i = 0;
    do
    :: i < RANKS ->
        if
        :: BIT(RANKS_OF(to), i) -> assert(nfull(inbox[i])); inbox[i] ! MOVE + k
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0; k = 0
}
#define ROOM_TO_MOVE (m_owner[0] == 0 || m_owner[1] == 0)

/* ---- orders */

inline withdraw(ranks)
{
    k = 0;
    do
    :: k < PENDING ->
        if
        :: o_ranks[k] & (ranks) -> o_ranks[k] = 0; o_bind[k] = 0; o_forced[k] = 0; o_for[k] = 0
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0
}

/* It replaces those that it overlaps. */
inline give_order(ranks, bind, forced, whom)
{
    withdraw(ranks);
    k = (o_ranks[0] == 0 -> 0 : 1);
    assert(o_ranks[k] == 0);
    o_ranks[k] = ranks; o_bind[k] = bind; o_forced[k] = forced; o_for[k] = whom;
    k = 0
}

/* Which of the new groups (or of all, when there is none) a sequence may move to: any; the code has a preference. */
inline settle(r)
{
    if
    :: place[r] == 15 && BIT(groups, 6) -> group[r] = 6
    :: place[r] == 12 && BIT(groups, 5) -> group[r] = 5
    :: place[r] == 3 && BIT(groups, 4) -> group[r] = 4
    :: place[r] == 8 && BIT(groups, 3) -> group[r] = 3
    :: place[r] == 4 && BIT(groups, 2) -> group[r] = 2
    :: place[r] == 2 && BIT(groups, 1) -> group[r] = 1
    :: place[r] == 1 && BIT(groups, 0) -> group[r] = 0
    :: else ->
        if
        :: true -> preempt(r, 1)
        :: true -> preempt(r, 0)
        :: ROOM_TO_MOVE ->
            do /* the first that may, or any after it */
            :: n < SETS && BIT((created -> created : groups), n) && !CLOSED(n) -> migrate(r, n); break
            :: n < SETS -> n++
            :: n == SETS -> preempt(r, 1); break
            od;
            n = 0
        fi
    fi
}

/* All orders that are ready, in one round: sequences of a group that goes find all groups that come. */
inline carry_out()
{
    d_step {
        n = 0;
        do
        :: n < PENDING ->
            if
            :: READY(n) -> ready = ready | (1 << n)
            :: else
            fi;
            n++
        :: else -> break
        od;
        n = 0;
        if
        :: ready != 0 ->
            gone = ((ready & 1) -> o_ranks[0] : 0) | ((ready & 2) -> o_ranks[1] : 0);
            do
            :: n < SETS ->
                if
                :: BIT(groups, n) && (RANKS_OF(n) & gone) ->
#if !defined(MUTANT_EARLY_ORDER) && !defined(MUTANT_POST_APART)
                    assert(!BIT(in_step, n) && s_left[n] == 0); /* nobody is in a step of a group that goes */
#endif
                    groups = groups & ~(1 << n);
                    in_step = in_step & ~(1 << n);
                    k = 0;
                    do
                    :: k < REQUESTS ->
                        if
                        :: state[k] == RUNNING && group[k] == n -> group[k] = NO_GROUP; orphans = orphans | (1 << k); busy[k] = 0
                        :: else
                        fi;
                        k++
                    :: else -> break
                    od;
                    k = 0
                :: else
                fi;
                n++
            :: else -> break
            od;
            n = 0;
            do
            :: n < SETS ->
                if
                :: (BIT(ready, 0) && o_bind[0] && o_ranks[0] == RANKS_OF(n)) || (BIT(ready, 1) && o_bind[1] && o_ranks[1] == RANKS_OF(n)) ->
                    create(n);
                    created = created | (1 << n)
                :: else
                fi;
                n++
            :: else -> break
            od;
            n = 0;
            do
            :: n < PENDING ->
                if
                :: BIT(ready, n) -> o_ranks[n] = 0; o_bind[n] = 0; o_forced[n] = 0; o_for[n] = 0
                :: else
                fi;
                n++
            :: else -> break
            od;
            n = 0; gone = 0; did = 1; changed = 1
        :: else
        fi;
        ready = 0
    }
    if
    :: orphans & 1 -> settle(0)
    :: else
    fi;
#if REQUESTS > 1
    if
    :: orphans & 2 -> settle(1)
    :: else
    fi;
#endif
    orphans = 0; created = 0
}

/* ---- what comes in */

/* After a failed step: the group goes, all that lies on the rank is lost, the living ranks form the largest groups there may be. */
inline lose_rank(g, r)
{
    dead = dead | (1 << (r));
    withdraw(1 << (r));
    groups = groups & ~(1 << (g));
    k = 0;
    do
    :: k < REQUESTS ->
        if
        :: state[k] == RUNNING && group[k] == g -> group[k] = NO_GROUP
        :: else
        fi;
        if
#ifdef MUTANT_NO_REQUEUE
        :: LIVE(k) && !busy[k] && BIT(place[k], r) && state[k] != RUNNING -> preempt(k, 0)
#else
        :: LIVE(k) && !busy[k] && (BIT(place[k], r) || (state[k] == RUNNING && group[k] == NO_GROUP)) -> preempt(k, 0)
#endif
        :: else
        fi;
        k++
    :: else -> break
    od;
    gone = RANKS_OF(g) & ~(1 << (r));
    k = SETS;
    do
    :: k > 0 ->
        k--;
        if
        :: (RANKS_OF(k) & ~gone) == 0 -> create(k); gone = gone & ~RANKS_OF(k)
        :: else
        fi
    :: else -> break
    od;
    assert(gone == 0);
    arrived[g] = 0; aborted[g] = 0 /* the comms of the group are as new */
}

inline absorb(g)
{
    assert(BIT(groups, g) && BIT(in_step, g) && s_left[g] == 0);
    in_step = in_step & ~(1 << (g));
    n = 0;
    do
    :: n < REQUESTS ->
        if
        :: busy[n] && group[n] == g ->
            busy[n] = 0;
            assert(s_error[g] || !moving[n]); /* what was posted before the step has landed */
            if
            :: !s_error[g] && !cancelled[n] ->
#ifdef SOURCE_LIVES
                assert(!BIT(tainted, n)); /* no token comes of KV that was copied off a failed device */
#endif
                todo[n]--
            :: else
            fi;
            if
            :: cancelled[n] || todo[n] == 0 -> end_request(n)
            :: else
            fi
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0;
    if
    :: s_error[g] ->
        assert(s_failed[g] != 0); /* a healthy rank is never dropped */
        lose_rank(g, s_failed[g] - 1)
    :: else
    fi;
    s_error[g] = 0; s_failed[g] = 0;
#ifndef MUTANT_SLEEPS
    changed = 1;
#endif
    turn = 1
}

inline move_done(m)
{
    assert(m_owner[m] != 0);
#ifndef MUTANT_FREE_EARLY
    assert(m_left[m] == 0);
#endif
    moving[m_owner[m] - 1]--;
    m_owner[m] = 0; m_from[m] = 0; m_to[m] = 0; m_left[m] = 0;
    changed = 1;
    turn = 1
}

/* ---- what the policy does besides steps; any of it, or nothing */

#define MAY_BIND(g) (!(RANKS_OF(g) & dead) && !BIT(groups, g))
#define MAY_RELEASE(g) (!(RANKS_OF(g) & dead) && (OVERLAPPED(g)))
#define OVERLAPPED(g) (BIT(groups, g) || BIT(groups, 6) || ((g) < 4 && BIT(groups, 4 + (g) / 2)) || ((g) > 3 && ANY_IN(g)))
#define ANY_IN(g) ((g) == 6 -> groups != 0 : ((g) == 5 -> groups & 44 : groups & 19))

inline an_order()
{
    do /* the ranks: any set of the pool */
    :: n < SETS - 1 -> n++
    :: break
    od;
    i = orders;
    if
    :: MAY_BIND(n) -> orders--; give_order(RANKS_OF(n), 1, 1, 0) /* hard */
    :: MAY_BIND(n) -> orders--; give_order(RANKS_OF(n), 1, 0, 0) /* drain */
    :: MAY_BIND(n) && LIVE(0) -> orders--; give_order(RANKS_OF(n), 1, 0, 1) /* soft */
    :: MAY_RELEASE(n) -> orders--; give_order(RANKS_OF(n), 0, 1, 0)
    :: MAY_RELEASE(n) -> orders--; give_order(RANKS_OF(n), 0, 0, 0)
    :: BIT(groups, n) && CLOSED(n) -> orders--; withdraw(RANKS_OF(n)) /* for what is so already: what was asked for before is off */
    :: true
    fi;
    if
    :: orders < i -> did = 1; changed = 1
    :: else
    fi;
    n = 0; i = 0
}

inline a_verb()
{
    do
    :: n < REQUESTS - 1 -> n++
    :: break
    od;
    if
    :: state[n] == RUNNING && !busy[n] -> verbs--; preempt(n, 1); did = 1; changed = 1 /* hard */
    :: LIVE(n) && !busy[n] && place[n] != 0 && !moving[n] && ROOM_TO_MOVE ->
        do
        :: g < SETS && ADMITS(g, n) && place[n] != RANKS_OF(g) -> verbs--; migrate(n, g); did = 1; changed = 1; break
        :: g < SETS -> g++
        :: g == SETS -> break
        od;
        g = 0
    :: true
    fi;
    n = 0
}

inline policy()
{
    if
    :: orders > 0 -> an_order()
    :: true
    fi;
    if
    :: verbs > 0 -> a_verb()
    :: true
    fi
}

/* ---- a step for every group that can have one and has somebody for it */

#define MAY_START(r, n) (CAN_STEP(n) && ADMITS(n, r) && (!parked[r] || place[r] == RANKS_OF(n)))

inline route(r)
{
    if
    :: state[r] == WAITING && !moving[r] ->
        do /* the last that it may start on, + 1 */
        :: n < SETS ->
            if
            :: MAY_START(r, n) -> k = n + 1
            :: else
            fi;
            n++
        :: else -> break
        od;
        n = 0;
        do /* any of them, but one: work is never left lying */
        :: MAY_START(r, n) ->
            state[r] = RUNNING; group[r] = n; place[r] = RANKS_OF(n); parked[r] = 0;
            break
        :: n + 1 < k -> n++
        :: k == 0 -> break
        od;
        n = 0; k = 0
    :: else
    fi
}

/* In all members' inboxes, and nothing else comes between: one thread posts. */
inline post(g)
{
    n = 0;
    do
    :: n < RANKS ->
        if
        :: BIT(RANKS_OF(g), n) -> assert(nfull(inbox[n])); inbox[n] ! g
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0;
    s_left[g] = SIZE_OF(g);
    take_off(g)
}

#ifdef MUTANT_POST_APART
/* The first member has it, the group counts as idle until the last has it too. */
inline post_first(g)
{
    apart = g + 1;
    at = (g == 5 -> 2 : 0);
    inbox[at] ! g;
    at++;
    s_left[g] = SIZE_OF(g)
}
#endif

inline take_off(g)
{
    n = 0;
    do
    :: n < REQUESTS ->
        if
        :: state[n] == RUNNING && group[n] == g -> busy[n] = 1
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0;
    in_step = in_step | (1 << (g))
}

#define HAS_ITEMS(g) ((state[0] == RUNNING && group[0] == (g)) || (state[REQUESTS - 1] == RUNNING && group[REQUESTS - 1] == (g)))

inline decide()
{
    changed = 0;
    policy();
    route(0);
#if REQUESTS > 1
    route(1);
#endif
    g = 0;
    do
    :: g < SETS ->
        if
        :: CAN_STEP(g) && HAS_ITEMS(g) ->
#ifdef MUTANT_POST_APART
            if
            :: SIZE_OF(g) > 1 && !apart -> post_first(g)
            :: else -> post(g)
            fi;
#else
            post(g);
#endif
            did = 1
        :: else
        fi;
        g++
    :: else -> break
    od;
    g = 0;
    if
    :: groups == 0 && NO_ORDER && HAS_WORK -> /* no policy may leave it so: the widest set that lives is bound */
        g = SETS - 1;
        do
        :: RANKS_OF(g) & dead -> g--
        :: else -> break
        od;
        give_order(RANKS_OF(g), 1, 1, 0);
        g = 0; did = 1
    :: else
    fi
}

#define AT_REST (ALL_ENDED && NO_ORDER && !turn && m_owner[0] == 0 && m_owner[1] == 0)

proctype engine()
{
    byte g, n, k, i, ready, gone, orphans, created;
    bit did;
#ifdef MUTANT_POST_APART
    byte apart, at;
#endif
    do
    /* ingest */
    :: atomic { engine_inbox ? g ->
        d_step {
            if
            :: g >= MOVE -> g = g - MOVE; move_done(g)
            :: else -> absorb(g)
            fi;
            g = 0; n = 0; k = 0; i = 0; gone = 0
        } }
    /* a client comes, in any order (they are alike: the first comes first) */
    :: d_step { state[0] == ABSENT -> state[0] = WAITING; turn = 1; changed = 1 }
#if REQUESTS > 1
    :: d_step { state[0] != ABSENT && state[1] == ABSENT -> state[1] = WAITING; turn = 1; changed = 1 }
#endif
    /* a client leaves: a busy request ends when its step is absorbed */
    :: atomic { cancels > 0 && (MAY_LEAVE(0) || MAY_LEAVE(REQUESTS - 1)) ->
        if
        :: MAY_LEAVE(0) -> n = 0
        :: MAY_LEAVE(REQUESTS - 1) -> n = REQUESTS - 1
        fi;
        cancels--;
        if
        :: busy[n] ->
            cancelled[n] = 1;
#ifdef MUTANT_TWO_ENDINGS
            endings[n]++;
#endif
            skip
        :: else -> end_request(n)
        fi;
        n = 0; turn = 1; changed = 1 }
    /* time passes: a waiting order becomes hard; a parked request's time is up */
    :: d_step { o_ranks[0] && !o_forced[0] -> o_forced[0] = 1; turn = 1 }
    :: d_step { o_ranks[1] && !o_forced[1] -> o_forced[1] = 1; turn = 1 }
    :: atomic { (parked[0] && !moving[0]) || (parked[REQUESTS - 1] && !moving[REQUESTS - 1]) ->
        if
        :: parked[0] && !moving[0] -> preempt(0, 0)
        :: parked[REQUESTS - 1] && !moving[REQUESTS - 1] -> preempt(REQUESTS - 1, 0)
        fi;
#ifndef MUTANT_UNPARK_SLEEPS
        changed = 1;
#endif
        turn = 1 }
    /* the policy wakes by itself */
    :: atomic { !turn && (orders > 0 || verbs > 0) && MAY_DECIDE ->
        policy();
        turn = did;
#ifdef TERMINATION
        if /* a wake for nothing costs one too: else it could be had for ever */
        :: !did && orders > 0 -> orders--
        :: !did && orders == 0 -> verbs--
        :: else
        fi;
#endif
        did = 0 }
    /* a turn: carry out, decide, post */
    :: atomic { turn ->
        did = 0;
        carry_out();
        if
        :: changed && MAY_DECIDE && HAS_WORK -> decide()
        :: else
        fi;
        turn = did; did = 0 }
#ifdef MUTANT_POST_APART
    :: atomic { apart > 0 ->
        g = apart - 1;
        inbox[at] ! g;
        at++;
        if
        :: at == RANKS || !BIT(RANKS_OF(g), at) -> apart = 0; at = 0; take_off(g)
        :: else
        fi;
        g = 0 }
#endif
    :: atomic { AT_REST && in_step == 0 && empty(engine_inbox) -> break }
    od;
    assert(empty(inbox[0]) && empty(inbox[1]) && empty(inbox[2]) && empty(inbox[3]));
    assert(endings[0] == 1 && endings[REQUESTS - 1] == 1)
}

init {
    atomic {
        run rank(0); run rank(1); run rank(2); run rank(3);
        run engine()
    }
}
