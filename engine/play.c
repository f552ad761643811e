/* A played machine: what is under way leaves the timetable when the driver knows what came of it. */
#include "engine/engine_state.h"

struct step *engine_take_step(struct engine *engine, int group)
{
    struct timetable_entry t;
    return timetable_release(&engine->under_way, group, 0, &t) ? t.step : NULL;
}

struct move *engine_take_move(struct engine *engine, uint64_t serial)
{
    struct timetable_entry t;
    return timetable_release(&engine->under_way, 0, serial, &t) ? t.move : NULL;
}

struct replica_task *engine_take_replica(struct engine *engine, int layer)
{
    struct timetable_entry t;
    return timetable_release_replica(&engine->under_way, layer, &t) ? t.replica : NULL;
}

struct reshard_task *engine_take_reshard(struct engine *engine, uint64_t ranks)
{
    struct timetable_entry t;
    return timetable_release_reshard(&engine->under_way, ranks, &t) ? t.reshard : NULL;
}
