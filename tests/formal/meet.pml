/* The barrier under every collective (kernels/cpu/comm.c: comm_meet, cpu_comm_abort, cpu_comm_reset), load by load and store by store, in a group of four ranks
 * with sp 2 and tp 2: each member meets its sp pair, its tp pair and all, twice; one member's device may fail at any point of it. Then the engine resets
 * the comms, and the group takes one more step without a failure. README.md says what is claimed. */
#define RANKS 4
#define COMMS 5 /* sp {0,1} {2,3}; tp {0,2} {1,3}; all */
#define STEPS 2
#define ROUNDS 1

byte arrived[COMMS], phase[COMMS];
bit aborted[COMMS];
byte left = 0, step = 0, failed = 0;    /* of the step: members yet to end, which it is, members that ended with an error */
byte failures = 1;
byte met[COMMS];                        /* meetings that were completed, counted by the members that came through */

#define SP(me) ((me) / 2)
#define TP(me) (2 + (me) % 2)
#define COMM(me, i) ((i) == 0 -> SP(me) : ((i) == 1 -> TP(me) : 4))
#define MEMBERS(c) ((c) == 4 -> 4 : 2)

inline abort_comm(c)
{
#ifdef MUTANT_FLAG_LAST
    phase[c]++;
    aborted[c] = 1
#else
    aborted[c] = 1;
    phase[c]++
#endif
}

/* All that this member sits in: who waits in one of them is woken, and passes it on. */
inline abandon()
{
    abort_comm(SP(me));
    abort_comm(TP(me));
    abort_comm(4)
}

proctype rank(byte me)
{
    byte mine, i, c, seen;
    bit ok;
end:
    do
    :: step > mine ->
        mine++;
        i = 0; ok = 1;
        do
        :: i < 3 * ROUNDS && ok ->
            if
            :: atomic { failures > 0 && step == 1 -> failures-- }; ok = 0
            :: true ->
                c = COMM(me, i % 3);
                seen = phase[c];
                if
                :: aborted[c] -> ok = 0
                :: else ->
                    atomic { arrived[c]++; seen = (arrived[c] == MEMBERS(c) -> 255 : seen) } /* fetch_add: 255: the last to come */
                    if
                    :: seen == 255 -> arrived[c] = 0; phase[c]++
                    :: else -> phase[c] != seen
                    fi;
                    ok = !aborted[c]
                fi;
                i++
            fi
        :: else -> break
        od;
        if
        :: ok -> assert(i == 3 * ROUNDS)
        :: else ->
#ifdef MUTANT_KEPT_TO_ITSELF
            if
            :: i == 0 -> abandon() /* only who failed by itself tells */
            :: else
            fi;
#else
            abandon();
#endif
            failed++
        fi;
        atomic { i = 0; c = 0; seen = 0; ok = 0; left-- }
    od
}

init
{
    byte k;
    atomic { run rank(0); run rank(1); run rank(2); run rank(3) }
    do
    :: step < STEPS ->
        atomic { failed = 0; left = RANKS; step++ }
        left == 0;
        d_step {
            if
            :: failures == 1 || step == 2 -> assert(failed == 0)
            :: else
            fi;
            k = 0;
            do /* reset: nobody is inside */
            :: k < COMMS ->
#ifndef MUTANT_NO_RESET
                if
                :: failed > 0 -> arrived[k] = 0; aborted[k] = 0
                :: else -> assert(arrived[k] == 0)
                fi;
#endif
                phase[k] = 0; k++
            :: else -> break
            od;
            k = 0
        }
    :: else -> break
    od
}
