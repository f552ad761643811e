/* Weights that are re-sharded: one engine, two ranks with their inboxes, and beside each a thread that brings weights
 * (engine/reshard.c, engine/exec/rank.c, engine/exec/transfer.c, engine/world/partition_round.c). README.md says what is
 * claimed.
 *
 * Sizes (-D): ORDERS (by the policy: the other layout of the pair), STEPS, CANCELS (the policy goes, or takes it back),
 * FAILURES (a rank cannot load), LAYERS (that a thread brings, one by one). */
#ifndef ORDERS
#define ORDERS 3
#endif
#ifndef STEPS
#define STEPS 3
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef FAILURES
#define FAILURES 0
#endif
#ifndef LAYERS
#define LAYERS 2
#endif

#define BOTH 3
#define BIT(set, i) (((set) >> (i)) & 1)
/* Layouts: 1 and 2 of the pair, 3 of a rank alone. */
#define OTHER(l) (3 - (l))

/* What a rank is told to do, and what the engine hears when the last of them has. */
#define STEP 1
#define TAKE 2
#define DROP 3
#define STAGE 4
chan inbox[2] = [4] of { byte, byte };
chan transfer[2] = [2] of { byte };
chan done = [4] of { byte };

/* ---- the books: only the engine writes them */
byte group = BOTH, layout = 1;  /* its ranks (0: there is none), which weights they hold */
byte loading;                   /* of them, those whose weights are to come: it takes no step */
bit told, in_step;
byte order;                     /* one that waits: its layout */
byte coming;                    /* of its weights: 0 not asked for, 1 on their way, 2 as many as there is room for */
bit forced;                     /* it is carried out when the group is between two steps */
bit of_order;                   /* the stage under way is for the order that waits */
byte staged;                    /* ranks that have, or get, weights that they do not use */
byte task;                      /* under way: STAGE, TAKE, DROP */
byte orders = ORDERS, steps = STEPS, cancels = CANCELS;

/* ---- between the engine and the ranks */
bit stop;
byte step_left, task_left, failed, failures = FAILURES;

/* ---- the ranks' */
byte held[2] = 1, brought[2];
bit bringing[2];

inline end_part(left, what)
{
    left--;
    if
    :: left == 0 -> assert(nfull(done)); done ! what
    :: else
    fi
}

/* ================================================================ ranks */

proctype rank(byte me)
{
    byte what, lay;
end:
    do
    :: atomic { inbox[me] ? what, lay ->
        if
        :: what == STEP ->
            assert(held[me] == lay);     /* it multiplies with what it has */
            end_part(step_left, STEP)
        :: what == TAKE ->
            assert(!bringing[me]);      /* nobody writes what is taken */
            brought[me] = 0;
            if
            :: failures > 0 && !failed -> failures--; failed = me + 1; held[me] = 0
            :: held[me] = lay
            fi;
            end_part(task_left, TAKE)
        :: what == DROP ->
            assert(!bringing[me]);
            brought[me] = 0;
            end_part(task_left, DROP)
        fi;
        what = 0; lay = 0 }
    od
}

/* Layer by layer; between two of them it may be told to stop. */
proctype bring(byte me)
{
    byte lay, n;
end:
    do
    :: atomic { n == 0 && nempty(transfer[me]) -> transfer[me] ? lay; bringing[me] = 1; n = 1 }
    :: atomic { n > 0 && !stop && n <= LAYERS -> brought[me] = lay; n++ }
    :: atomic { n > 0 && (stop || n > LAYERS) -> bringing[me] = 0; n = 0; lay = 0; end_part(task_left, STAGE) }
    od
}

/* ================================================================ engine */

#ifdef MUTANT_TAKES_BESIDE
#define MAY_TAKE (task == 0 || task == STAGE)
#else
#define MAY_TAKE (task == 0)
#endif
#define ITS_WEIGHTS (coming != 1)
#define WANTED ((order -> BOTH : 0) | loading)

inline post(kind, to)
{
    task = kind;
    task_left = BIT(to, 0) + BIT(to, 1);
    byte i;
    i = 0;
    do
    :: i < 2 ->
        if
        :: BIT(to, i) && kind == STAGE -> transfer[i] ! order
        :: BIT(to, i) && kind != STAGE -> assert(nfull(inbox[i])); inbox[i] ! kind, layout
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

inline drop_order()
{
    order = 0; coming = 0; forced = 0; of_order = 0
}

/* A stage whose order has gone, or may wait no longer, ends with what has come. */
inline look_at_stage()
{
    if
    :: task == STAGE && (!of_order || forced) -> stop = 1
    :: else
    fi
}

inline lose_rank()
{
    group = group & ~(1 << (failed - 1));
    layout = 3; loading = group; told = 0;
    held[failed - 1] = 0;
    failed = 0;
    drop_order()
}

inline take_in()
{
    done ? what;
    if
    :: what == STEP -> in_step = 0
    :: what == STAGE ->
        task = 0; stop = 0;
        if
        :: of_order -> coming = 2; forced = 1
        :: else
        fi;
        of_order = 0
    :: what == TAKE ->
        task = 0; loading = 0;
        if
        :: failed -> lose_rank()
        :: else
        fi
    :: what == DROP -> task = 0
    fi;
    what = 0
}

proctype engine()
{
    byte what;
    do
    :: atomic { nempty(done) -> take_in(); look_at_stage() }
    /* the policy: ready or hard, takes back, and time goes by */
    :: atomic { orders > 0 && group == BOTH && order == 0 && !loading -> orders--; order = OTHER(layout);
        if
        :: forced = 0
        :: forced = 1
        fi }
    :: atomic { cancels > 0 && order -> cancels--; drop_order(); look_at_stage() }
    :: atomic { order && !forced -> forced = 1; look_at_stage() }
#ifdef MUTANT_STEPS_WHILE_LOADING
#define MAY_STEP true
#else
#define MAY_STEP (!loading)
#endif
    :: atomic { steps > 0 && group && !in_step && MAY_STEP && !forced -> steps--; in_step = 1;
        step_left = BIT(group, 0) + BIT(group, 1);
        if
        :: BIT(group, 0) -> inbox[0] ! STEP, layout
        :: else
        fi;
        if
        :: BIT(group, 1) -> inbox[1] ! STEP, layout
        :: else
        fi }
    /* what is due */
    :: atomic { order && forced && ITS_WEIGHTS && !in_step && !loading ->  /* carried out */
        layout = order; loading = group; told = 0;
        drop_order() }
    :: atomic { loading && !told && MAY_TAKE -> told = 1; staged = staged & ~loading; post(TAKE, loading) }
    :: atomic { order && coming == 0 && !forced && task == 0 -> coming = 1; of_order = 1; staged = BOTH; post(STAGE, BOTH) }
#ifndef MUTANT_DROPS_NOTHING
#ifdef MUTANT_DROPS_BESIDE
#define MAY_DROP (task == 0 || task == STAGE)
#else
#define MAY_DROP (task == 0)
#endif
    :: atomic { MAY_DROP && (staged & ~WANTED) -> staged = staged & WANTED; post(DROP, BOTH) }
#endif
    /* nothing is under way, nobody waits: nothing lies about, and who is in a group has what it needs */
    :: atomic { task == 0 && !order && !loading && !(staged & ~WANTED) && !in_step && empty(done) ->
        assert(!brought[0] && !brought[1]);
        assert(!BIT(group, 0) || held[0] == layout);
        assert(!BIT(group, 1) || held[1] == layout);
        break }
    od
}

init
{
    atomic {
        run rank(0); run rank(1); run bring(0); run bring(1); run engine()
    }
}
