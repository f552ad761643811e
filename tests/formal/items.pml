/* How the threads of a CPU rank take the items of its jobs: the caller and some helpers, lanes, who helps whom, and a
 * helper that comes so late that the next job has begun. README.md says what is modelled, what is left out, and what is
 * claimed.
 *
 * Sizes (-D): HELPERS, JOBS, SMALL and BIG (items of a job, which they have in turn). */
#ifndef HELPERS
#define HELPERS 2
#endif
#ifndef JOBS
#define JOBS 3
#endif
#ifndef SMALL
#define SMALL 2
#endif
#ifndef BIG
#define BIG 4
#endif

#define LANES (HELPERS + 1)
#define CLOSED 99 /* no item has this number */
#define NONE 77
#define items(j) (((j) % 2) -> SMALL : BIG)
#define lanes(j) (items(j) < LANES -> items(j) : LANES)
#define first(j, l) (items(j) * (l) / lanes(j))

typedef lane_t {
    byte number, next; /* one word */
    byte end
};

lane_t lane[LANES];
byte job, fields, n_lanes, left, open;
bool stop;

/* What the model knows and no thread reads. */
byte under_way; /* the job that may run; 0: none */
byte ran[8];

#ifdef MUTANT_NO_NUMBER
#define is_mine true
#else
#define is_mine (c_number == number)
#endif

inline take(l)
{
    d_step { c_number = lane[l].number; c_next = lane[l].next };
    do
    :: end = lane[l].end;
       if
       :: is_mine && c_next < end ->
          atomic {
              if
              :: lane[l].number == c_number && lane[l].next == c_next -> lane[l].next++; item = c_next; break
              :: else -> c_number = lane[l].number; c_next = lane[l].next
              fi
          }
       :: else -> item = NONE; break
       fi
    od;
    if
    :: item + 1 == end ->
#ifdef MUTANT_SAYS_LATE
       emptied = emptied | (1 << l)
#else
       open = open & ~(1 << l)
#endif
    :: else
    fi;
    c_number = 0; c_next = 0; end = 0
}

inline run_lane(l)
{
    do
    :: take(l);
       if
       :: item == NONE -> break
       :: else ->
          atomic {
              assert(number == under_way && theirs == number && !ran[item]);
              ran[item] = 1;
              done++;
              item = 0
          }
       fi
    od;
    item = 0
}

#define left_over(l) (lane[l].number == number && lane[l].next < lane[l].end)

/* The caller is thread 0. */
inline work(thread)
{
    theirs = fields;
    if
    :: thread < n_lanes -> run_lane(thread)
    :: else
    fi;
    seen = 1 << thread;
    do
    :: atomic {
           others = open & ~seen;
           if
           :: !others -> /* nobody leaves while there is something to take */
              assert(number != under_way || job != number ||
                     !(left_over(0) || left_over(1) || left_over(LANES - 1)));
              break
           :: else -> k = thread
           fi
       };
       do
       :: others & (1 << k) -> break
       :: else -> k = (k + 1) % LANES
       od;
       run_lane(k);
       seen = seen | (1 << k);
       k = 0
    od;
    others = 0; seen = 0; theirs = 0;
    if
    :: done -> left = left - done; done = 0
    :: else
    fi;
#ifdef MUTANT_SAYS_LATE
    open = open & ~emptied; emptied = 0
#endif
}

proctype helper(byte me)
{
    byte number, c_number, c_next, end, item, theirs, done, seen, others, k, emptied;
    do
    :: job != number -> number = job;
       if
       :: stop -> break
       :: else -> work(me)
       fi
    od
}

inline lay_out(j)
{
    l = 0;
    do
    :: l < lanes(j) ->
#ifndef MUTANT_NOT_CLOSED
       d_step { lane[l].number = j; lane[l].next = CLOSED };
#endif
       lane[l].end = first(j, l + 1);
       d_step { lane[l].number = j; lane[l].next = first(j, l) };
       l++
    :: else -> break
    od;
    l = 0;
    n_lanes = lanes(j);
    open = (1 << lanes(j)) - 1
}

init
{
    byte number, c_number, c_next, end, item, theirs, done, seen, others, k, emptied, l;
    atomic {
        do
        :: k < HELPERS -> k++; run helper(k)
        :: else -> k = 0; break
        od
    };
    do
    :: number < JOBS ->
       number++;
       left = items(number);
       lay_out(number);
       fields = number;
       d_step {
           under_way = number;
           job = number
       };
       work(0);
       left == 0;
       d_step {
           under_way = 0;
           do
           :: k < items(number) -> assert(ran[k]); ran[k] = 0; k++
           :: else -> k = 0; break
           od
       }
    :: else -> break
    od;
    stop = true;
    job = JOBS + 1
}
