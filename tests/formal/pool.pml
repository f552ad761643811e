/* Pooled FFN weights: four ranks, each with a step thread, a fetcher and a server, and the engine. README.md says what is modelled, what is left
 * out, and what is claimed.
 *
 * Sizes (-D): REQUESTS (1 to 3: as many groups step at a time), STEPS (of each request), LAYERS, SLOTS (of each rank), PARTS (of a layer, each with a product: gate and up; down; 1: it
 * comes whole), CANCELS, FAILURES, ORDERS (bind,
 * release). START is the partition to begin with. CAS: the layers that a step may have as compute as a service, as bits; each step has any of them. ANY_ORDER:
 * of fetches; else as the step needs them. SLICED: several layers are on their way at a time. */
#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef STEPS
#define STEPS 1
#endif
#ifndef LAYERS
#define LAYERS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef CANCELS
#define CANCELS 0
#endif
#ifndef FAILURES
#define FAILURES 0
#endif
#ifndef ORDERS
#define ORDERS 0
#endif
#ifndef PARTS
#define PARTS 2
#endif
#ifndef CAS
#define CAS 0
#endif
#ifndef START
#define START 15
#endif

#define RANKS 4
#define ALL 15
#define NONE 7
#define NO_SLOT 255
/* The rank sets that may be groups, by index: {0} {1} {2} {3} {0,1} {2,3}. */
#define SETS 6
#define RANKS_OF(g) ((g) < 4 -> 1 << (g) : ((g) == 4 -> 3 : 12))
#define SIZE_OF(g) ((g) < 4 -> 1 : 2)
#define BIT(set, i) (((set) >> (i)) & 1)
#define ADD(set, i) set = set | (1 << (i))
#define TAKE(set, i) set = set & ~(1 << (i))

/* ---- the pool */
byte owner[LAYERS];             /* the rank that a layer is read from, and asked for: the engine's, between steps */
byte lies[RANKS];               /* ghost: layers whose bytes are all there, by owner */
byte failed;                    /* ranks whose device has failed, as the pool was told */
byte asked[LAYERS];             /* at the owner: the ranks whose rows have come for the layer */
byte declared;                  /* ranks in a step that has layers as compute as a service */
byte failures = FAILURES;

/* ---- a rank's, shared by its step, its fetcher and the servers */
byte stepping;                  /* ranks in a step */
byte next[RANKS];               /* the layer whose product comes next; LAYERS: none of this step */
byte cas[RANKS];                /* modes of the step */
byte told, awake;               /* a step, a fetcher: something has changed, look again */
byte reply[RANKS];              /* 0: none; the layer + 1; PEER: the owner failed */
byte used[RANKS];               /* the slot that a product reads, or a layer's products between them, + 1 */
#define PEER 9
byte holds[RANKS * SLOTS] = NONE;       /* the layer that lies in a slot, or is on its way there */
byte parts[RANKS * SLOTS];              /* that have come */
byte bytes[RANKS * SLOTS] = NONE;       /* ghost: the layer that really lies there */
byte there[RANKS * SLOTS];               /* ghost: so much of it */
#define SLOT(r, i) ((r) * SLOTS + (i))

/* ---- steps: the engine's before the post and after the last member has ended, the ranks' between */
byte posted;                    /* ranks that have a step in the inbox */
byte team[RANKS];               /* its group */
byte s_left[SETS], ended;       /* members yet to end; groups whose last has ended */
byte s_error;                   /* groups of which some part ended with an error */
byte arrived, phase, aborted;   /* the pairs' barriers, by pair */

mtype = { OUT, GOES, WAITS, USES, ASKS, MEETS };
byte cancelled;                 /* requests; the ranks do not look at it */

/* ================================================================ ranks */

/* The device of the rank fails: whoever waits looks again. The rows that were sent to it are its server's to answer. */
inline fail(r)
{
    ADD(failed, r);
#ifndef MUTANT_NO_WAKE
    told = told | stepping;
    awake = awake | stepping
#endif
}

inline end_part()
{
    TAKE(stepping, me);
    TAKE(declared, me);
    TAKE(told, me);
#ifndef MUTANT_IDLE_FETCHES
    TAKE(awake, me);
#endif
    next[me] = 0; cas[me] = 0; used[me] = 0;
    s_left[g]--;
    if
    :: s_left[g] == 0 -> ADD(ended, g)
    :: else
    fi;
    g = 0; sense = 0; need = 0;
    doing = OUT
}

/* The others of the group are told: they may sit in a meeting. */
inline end_badly()
{
    ADD(s_error, g);
#ifndef MUTANT_NO_ABORT
    if
    :: SIZE_OF(g) == 2 -> ADD(aborted, g - 4)
    :: else
    fi;
#endif
    end_part()
}

/* A slot has as much of the layer that comes next as the product needs, its owner has failed, or neither. */
#ifdef MUTANT_ANY_NUMBER
#define SUITS(i) (parts[SLOT(me, i)] >= need)
#elif defined(MUTANT_EARLY)
#define SUITS(i) (holds[SLOT(me, i)] == next[me] && parts[SLOT(me, i)] + 1 >= need)
#else
#define SUITS(i) (holds[SLOT(me, i)] == next[me] && parts[SLOT(me, i)] >= need)
#endif
inline look()
{
    TAKE(told, me);
    if
    :: SUITS(0) -> used[me] = 1; doing = USES
    :: !SUITS(0) && SUITS(SLOTS - 1) -> used[me] = SLOTS; doing = USES
    :: !SUITS(0) && !SUITS(SLOTS - 1) && BIT(failed, owner[next[me]]) -> end_badly()
    :: else -> doing = WAITS
    fi
}

inline ask()
{
    if
    :: BIT(failed, owner[next[me]]) -> end_badly()
    :: else ->
        assert(BIT(stepping, me) && reply[me] == 0);
        ADD(asked[next[me]], me);
        doing = ASKS
    fi
}

/* Behind a product: the members of a group meet. */
inline product_done()
{
    assert(reply[me] == 0);
    if
    :: SIZE_OF(g) == 1 -> next_layer()
    :: else ->
        if
        :: BIT(arrived, g - 4) && !BIT(aborted, g - 4) -> TAKE(arrived, g - 4); phase = phase ^ (1 << (g - 4)); next_layer()
        :: else -> ADD(arrived, g - 4); sense = BIT(phase, g - 4); doing = MEETS
        fi
    fi
}

inline next_layer()
{
    next[me]++;
#ifndef MUTANT_FETCHES_SLEEP
    ADD(awake, me);
#endif
    doing = GOES
}

/* The step thread, one step after the other. */
proctype rank(byte me)
{
    byte g, need;
    bit sense;
    mtype doing = OUT;
end:
    do
    :: atomic { doing == OUT && BIT(posted, me) ->
        TAKE(posted, me);
        g = team[me]; team[me] = 0;
        assert(s_left[g] > 0 && BIT(RANKS_OF(g), me) && !BIT(stepping, me) && next[me] == 0);
        ADD(stepping, me);
        ADD(awake, me);
        if
        :: cas[me] != 0 -> ADD(declared, me)
        :: else
        fi;
        doing = GOES }
    :: atomic { doing == GOES && next[me] == LAYERS && !BIT(failed, me) -> end_part() }
    :: atomic { doing == GOES && BIT(failed, me) -> end_badly() }
    :: atomic { doing == GOES && failures > 0 && !BIT(failed, me) -> failures--; fail(me); end_badly() }
    :: atomic { doing == GOES && next[me] < LAYERS && !BIT(failed, me) ->
        if
        :: owner[next[me]] == me -> assert(BIT(lies[me], next[me])); product_done()
        :: owner[next[me]] == me && BIT(cas[me], next[me]) && (declared & ~(1 << me)) -> ask() /* with the others' rows, or by itself: any */
        :: owner[next[me]] != me && BIT(cas[me], next[me]) -> ask()
        :: owner[next[me]] != me && !BIT(cas[me], next[me]) -> need = 1; look()
        fi }
    :: atomic { doing == WAITS && BIT(told, me) -> look() }
    :: atomic { doing == USES -> /* a product has ended: what it read was there, and nothing has come over it meanwhile */
        assert(bytes[SLOT(me, used[me] - 1)] == next[me] && there[SLOT(me, used[me] - 1)] >= need);
        if
        :: need < PARTS -> need++; look()
        :: else -> used[me] = 0; need = 0; product_done()
        fi }
#ifdef MUTANT_LEAVES
    :: atomic { doing == ASKS && reply[me] == 0 && cancelled != 0 -> end_part() }
#endif
    :: atomic { doing == ASKS && reply[me] != 0 ->
        if
        :: reply[me] == PEER -> reply[me] = 0; end_badly()
        :: else -> assert(reply[me] == next[me] + 1); reply[me] = 0; product_done()
        fi }
    :: atomic { doing == MEETS && (BIT(phase, g - 4) != sense || BIT(aborted, g - 4)) ->
        if
        :: BIT(aborted, g - 4) -> end_badly()
        :: else -> next_layer()
        fi }
    od
}

/* ================================================================ fetchers */

#define DISTANCE(l) (((l) + LAYERS - next[me]) % LAYERS)
#define WANTED(l) (owner[l] != me && !BIT(cas[me], l) && !BIT(failed, owner[l])) /* by this step, or the one that may follow */
#define COMES(s) (holds[s] != NONE && parts[s] < PARTS)
#ifdef MUTANT_DROP_FREES
#define KEPT(i) (COMES(SLOT(me, i)) || (used[me] == (i) + 1 && holds[SLOT(me, i)] != NONE))
#else
#define KEPT(i) (COMES(SLOT(me, i)) || used[me] == (i) + 1)
#endif
#define FREE(i) (holds[SLOT(me, i)] == NONE || !WANTED(holds[SLOT(me, i)]))
#define IS_THERE(l) (holds[SLOT(me, 0)] == (l) || holds[SLOT(me, SLOTS - 1)] == (l))
/* May the layer come into the slot? It is free, or what lies there is needed later (the code takes the one that is needed last). */
#ifdef MUTANT_RING
#define MAY_COME(l, i) (WANTED(l) && !IS_THERE(l) && !COMES(SLOT(me, i)))
#else
#define MAY_COME(l, i) (WANTED(l) && !IS_THERE(l) && !KEPT(i) && (FREE(i) || DISTANCE(holds[SLOT(me, i)]) > DISTANCE(l)))
#endif
#define OF(k) ((next[me] + (k) / SLOTS) % LAYERS)      /* choices, the nearest layer first: the layer, the slot */
#define INTO(k) ((k) % SLOTS)
#define SOME_COMES (COMES(SLOT(me, 0)) || COMES(SLOT(me, SLOTS - 1)))
#ifdef SLICED
#define MAY_BEGIN true
#else
#define MAY_BEGIN (!SOME_COMES)
#endif
#ifdef MUTANT_IDLE_FETCHES
#define MAY_FETCH true
#else
#define MAY_FETCH BIT(stepping, me)
#endif

/* A further layer is on its way, if there is one that may come. */
inline begin_layer()
{
    do
    :: n < LAYERS * SLOTS ->
        if
#ifdef ANY_ORDER
        :: MAY_COME(OF(n), INTO(n)) -> last = n + 1
#else
        :: MAY_COME(OF(n), INTO(n)) && (last == 0 || OF(n) == OF(last - 1)) -> last = n + 1
#endif
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0;
    if
    :: last > 0 ->
        do /* any of them, but one */
        :: MAY_COME(OF(n), INTO(n)) -> break
        :: n + 1 < last -> n++
        od;
        last = SLOT(me, INTO(n));
        n = OF(n);
        holds[last] = n; parts[last] = 0;
        bytes[last] = NONE; there[last] = 0
    :: else
    fi;
    n = 0; last = 0
}

/* The next part of what comes, or nothing is to be done. */
inline begin_part()
{
    if
    :: COMES(SLOT(me, 0)) -> n = SLOT(me, 0)
    :: SLOTS > 1 && COMES(SLOT(me, SLOTS - 1)) -> n = SLOT(me, SLOTS - 1)
    :: else -> n = NO_SLOT
    fi;
    if
    :: n == NO_SLOT -> TAKE(awake, me)
    :: n != NO_SLOT && BIT(failed, owner[holds[n]]) -> /* given up; a product may still use what has come */
        holds[n] = NONE; parts[n] = 0;
        told = told | (stepping & (1 << me))
    :: else ->
        assert(BIT(stepping, me)); /* a rank without a step moves nothing */
        copies = n + 1
    fi;
    n = 0
}

proctype fetcher(byte me)
{
    byte n, last, copies;       /* the slot that a copy is on its way to, + 1 */
end:
    do
    :: atomic { copies == 0 && BIT(awake, me) && MAY_FETCH ->
        if
        :: MAY_BEGIN -> begin_layer()
        :: else
        fi;
        begin_part() }
    :: d_step { copies > 0 -> /* the step may have ended meanwhile */
        n = copies - 1; copies = 0;
        assert(BIT(failed, owner[holds[n]]) || BIT(lies[owner[holds[n]]], holds[n])); /* what was read was there */
        parts[n]++;
        bytes[n] = holds[n]; there[n] = parts[n];
        n = 0;
        told = told | (stepping & (1 << me));
        awake = awake | (stepping & (1 << me)) }
    od
}

/* ================================================================ servers */

#ifdef MUTANT_IDLE_OWNER
#define SERVES BIT(stepping, me)
#elif defined(MUTANT_SERVER_ENDS)
#define SERVES (!BIT(failed, me))
#else
#define SERVES true /* also when it has failed: who has asked gets an answer */
#endif
#ifdef MUTANT_WAITS_FOR_ALL
#define COMPLETE(l) ((declared & ~asked[l]) == 0)
#else
#define COMPLETE(l) true /* it may wait for the rows of more ranks, but no longer than so long: it may go on at any time */
#endif
#define HAS_ASKED(l) (owner[l] == me && asked[l] != 0 && COMPLETE(l))
#if LAYERS == 2
#define ANY_ASKED (HAS_ASKED(0) || HAS_ASKED(1))
#elif LAYERS == 3
#define ANY_ASKED (HAS_ASKED(0) || HAS_ASKED(1) || HAS_ASKED(2))
#else
#define ANY_ASKED (HAS_ASKED(0) || HAS_ASKED(1) || HAS_ASKED(2) || HAS_ASKED(3))
#endif

inline answer(what)
{
    do
    :: i < RANKS ->
        if
        :: BIT(taken, i) -> assert(reply[i] == 0); reply[i] = what
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0; taken = 0; l = 0
}

/* One product after the other: all rows that have come for one layer. */
proctype server(byte me)
{
    byte l, taken, n, i;
end:
    do
    :: atomic { taken == 0 && SERVES && ANY_ASKED ->
        do /* the last that has, + 1 */
        :: n < LAYERS ->
            if
            :: HAS_ASKED(n) -> i = n + 1
            :: else
            fi;
            n++
        :: else -> break
        od;
        n = 0;
        do
        :: HAS_ASKED(n) -> break
        :: n + 1 < i -> n++
        od;
        l = n; taken = asked[l]; asked[l] = 0;
        n = 0; i = 0 }
    :: atomic { taken != 0 ->
        if
        :: BIT(failed, me) -> answer(PEER)
        :: !BIT(failed, me) -> assert(BIT(lies[me], l)); answer(l + 1)
        :: !BIT(failed, me) && failures > 0 -> failures--; fail(me); answer(PEER)
        fi }
    od
}

/* ================================================================ engine */

#define LIVES(r) (!BIT(dead, r) && !BIT(failed, r))
#define LOST(l) BIT(failed, owner[l])
#if LAYERS == 2
#define SOME_LOST (LOST(0) || LOST(1))
#elif LAYERS == 3
#define SOME_LOST (LOST(0) || LOST(1) || LOST(2))
#else
#define SOME_LOST (LOST(0) || LOST(1) || LOST(2) || LOST(3))
#endif
#ifdef MUTANT_POSTS_LOST
#define CAN_STEP(g) (BIT(groups, g) && !BIT(in_step, g) && !down)
#else
#define CAN_STEP(g) (BIT(groups, g) && !BIT(in_step, g) && !down && !SOME_LOST)
#endif
#define ANY_CAN_STEP (CAN_STEP(0) || CAN_STEP(1) || CAN_STEP(2) || CAN_STEP(3) || CAN_STEP(4) || CAN_STEP(5))
#define IDLE(r) (endings[r] == 0 && busy[r] == 0)
#if REQUESTS == 1
#define FIRST_IDLE (IDLE(0) -> 0 : NONE)
#define ALL_ENDED (endings[0] == 1)
#elif REQUESTS == 2
#define FIRST_IDLE (IDLE(0) -> 0 : (IDLE(1) -> 1 : NONE))
#define ALL_ENDED (endings[0] == 1 && endings[1] == 1)
#else
#define FIRST_IDLE (IDLE(0) -> 0 : (IDLE(1) -> 1 : (IDLE(2) -> 2 : NONE)))
#define ALL_ENDED (endings[0] == 1 && endings[1] == 1 && endings[2] == 1)
#endif

inline end_request(r)
{
    assert(busy[r] == 0);
    endings[r]++;
    assert(endings[r] == 1);
    todo[r] = 0;
    TAKE(cancelled, r)
}

/* A step for request r, in any group that can have one; its modes are any. */
inline post(r)
{
    n = 0;
    do
    :: n < SETS ->
        if
        :: CAN_STEP(n) -> i = n + 1
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0;
    do
    :: CAN_STEP(n) -> break
    :: n + 1 < i -> n++
    od;
    g = n; n = 0; i = 0;
    do
    :: n < LAYERS ->
        if
        :: BIT(CAS, n) -> ADD(k, n)
        :: true
        fi;
        n++
    :: else -> break
    od;
    n = 0;
    do
    :: n < RANKS ->
        if
        :: BIT(RANKS_OF(g), n) ->
            ADD(posted, n); team[n] = g; cas[n] = k
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0; k = 0;
    busy[r] = g + 1;
    s_left[g] = SIZE_OF(g);
    ADD(in_step, g);
    g = 0
}

/* Ranks that have failed and are in no step any more go, with their groups; their peers are groups of their own. */
inline drop_failed(gone)
{
    n = 0;
    do
    :: n < RANKS ->
        if
#ifdef MUTANT_FORGETS_IDLE
        :: BIT(failed, n) && !BIT(dead, n) && BIT(RANKS_OF(gone), n) ->
#else
        :: BIT(failed, n) && !BIT(dead, n) && !BIT(in_step, n) && !BIT(in_step, 4 + n / 2) ->
#endif
            ADD(dead, n);
            lies[n] = 0;
            TAKE(groups, n);
            if
            :: BIT(groups, 4 + n / 2) -> TAKE(groups, 4 + n / 2); ADD(groups, n ^ 1)
            :: else
            fi
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0
}

inline absorb(gone)
{
    assert(BIT(in_step, gone) && s_left[gone] == 0 && !(stepping & RANKS_OF(gone)));
    TAKE(ended, gone);
    TAKE(in_step, gone);
    n = 0;
    do
    :: n < REQUESTS ->
        if
        :: busy[n] == gone + 1 ->
            busy[n] = 0;
            if
            :: BIT(s_error, gone) -> assert(failed != 0) /* a step fails with a device only */
            :: else -> todo[n]--
            fi;
            if
            :: todo[n] == 0 || BIT(cancelled, n) -> end_request(n)
            :: else
            fi
        :: else
        fi;
        n++
    :: else -> break
    od;
    n = 0;
    if
    :: gone >= 4 -> TAKE(arrived, gone - 4); TAKE(aborted, gone - 4); TAKE(phase, gone - 4)
    :: else
    fi;
#ifdef MUTANT_DROPS_PEER
    if
    :: BIT(s_error, gone) && !(failed & RANKS_OF(gone)) -> dead = dead | RANKS_OF(gone)
    :: else
    fi;
#endif
    TAKE(s_error, gone);
    drop_failed(gone);
    assert((dead & ~failed) == 0) /* a healthy rank is never dropped */
}

#define BOUND(p) (BIT(groups, 4 + (p)) && !BIT(in_step, 4 + (p)))
#define APART(p) (((groups >> (2 * (p))) & 3) == 3 && ((in_step >> (2 * (p))) & 3) == 0)
/* Only between steps: a step reads an owner once and waits for it. */
#ifdef MUTANT_LOADS_IN_STEP
#define TO_LOAD(l) (loading == 0 && !down && BIT(dead, owner[l]))
#else
#define TO_LOAD(l) (loading == 0 && !down && BIT(dead, owner[l]) && in_step == 0)
#endif

inline reload(l)
{
    if
    :: LIVES(0) -> to = 0
    :: LIVES(1) -> to = 1
    :: LIVES(2) -> to = 2
    :: LIVES(3) -> to = 3
    :: true -> down = 1 /* no room */
    fi;
    if
    :: !down ->
        loading = l + 1;
#ifdef MUTANT_EARLY_OWNER
        owner[l] = to
#endif
    :: else
    fi
}

proctype engine()
{
    byte groups = START, in_step, dead, todo[REQUESTS] = STEPS, busy[REQUESTS], endings[REQUESTS], loading, to;
    byte orders = ORDERS, cancels = CANCELS;
    byte g, n, i, k, who;
    bit down;
    do
    :: atomic { FIRST_IDLE != NONE && ANY_CAN_STEP -> who = FIRST_IDLE; post(who); who = 0 }
    :: d_step { ended != 0 ->
        do
        :: BIT(ended, g) -> break
        :: else -> g++
        od;
        absorb(g);
        g = 0 }
#if CANCELS > 0
    :: atomic { cancels > 0 && !ALL_ENDED ->
        cancels--;
        if
        :: endings[0] == 0 && !BIT(cancelled, 0) -> n = 0
        :: endings[REQUESTS - 1] == 0 && !BIT(cancelled, REQUESTS - 1) -> n = REQUESTS - 1
        :: true -> n = NONE
        fi;
        if
        :: n == NONE
        :: n != NONE && busy[n] != 0 -> ADD(cancelled, n)
        :: n != NONE && busy[n] == 0 -> end_request(n)
        fi;
        n = 0 }
#endif
#if ORDERS > 0
    :: d_step { orders > 0 && BOUND(0) -> orders--; groups = (groups & ~16) | 3 }
    :: d_step { orders > 0 && BOUND(1) -> orders--; groups = (groups & ~32) | 12 }
    :: d_step { orders > 0 && APART(0) -> orders--; groups = (groups & ~3) | 16 }
    :: d_step { orders > 0 && APART(1) -> orders--; groups = (groups & ~12) | 32 }
#endif
#if FAILURES > 0
    :: atomic { TO_LOAD(0) -> reload(0) }
    :: atomic { TO_LOAD(1) -> reload(1) }
#if LAYERS > 2
    :: atomic { TO_LOAD(2) -> reload(2) }
#endif
#if LAYERS > 3
    :: atomic { TO_LOAD(3) -> reload(3) }
#endif
    :: d_step { loading > 0 ->
        if
        :: LIVES(to) ->
            ADD(lies[to], loading - 1);
            owner[loading - 1] = to
        :: else
        fi;
        loading = 0; to = 0 }
    /* 503 */
    :: d_step { down && FIRST_IDLE != NONE -> n = FIRST_IDLE; end_request(n); n = 0 }
#endif
    :: atomic { ALL_ENDED && in_step == 0 && loading == 0 -> break }
    od;
    assert(stepping == 0 && declared == 0 && posted == 0);
    assert(asked[0] == 0 && asked[LAYERS - 1] == 0);
    assert(reply[0] == 0 && reply[1] == 0 && reply[2] == 0 && reply[3] == 0)
}

init {
    byte n;
    atomic {
        do
        :: n < LAYERS -> owner[n] = n % RANKS; ADD(lies[n % RANKS], n); n++
        :: else -> break
        od;
        n = 0;
        do
        :: n < RANKS -> run rank(n); run fetcher(n); run server(n); n++
        :: else -> break
        od;
        n = 0;
        run engine()
    }
}
