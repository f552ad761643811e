#include "engine/base/cores.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/sysfs.h"

/* CPUs beside which faster ones may be used: those of the kind that the system calls atoms, or of less than half of the
 * largest capacity. */
static void find_slow(const char *root, const bool may[CORES_MOST_CPUS], bool slow[CORES_MOST_CPUS])
{
    char core[SYSFS_TEXT], text[SYSFS_TEXT];
    bool kinds = sysfs_read(core, "%s/sys/devices/cpu_core/cpus", root), fast = false;
    long most = 0, capacity[CORES_MOST_CPUS] = {0};
    for (int i = 0; i < CORES_MOST_CPUS; i++) {
        if (!may[i])
            continue;
        fast = fast || (kinds && sysfs_lists(core, i));
        if (sysfs_read(text, "%s/sys/devices/system/cpu/cpu%d/cpu_capacity", root, i))
            capacity[i] = strtol(text, NULL, 10);
        most = capacity[i] > most ? capacity[i] : most;
    }
    for (int i = 0; i < CORES_MOST_CPUS; i++)
        slow[i] = may[i] && ((fast && !sysfs_lists(core, i)) || (capacity[i] > 0 && 2 * capacity[i] < most));
}

/* Does an earlier CPU, which counts, share the core of this one? */
static bool is_sibling(const char *root, const bool counts[CORES_MOST_CPUS], int cpu)
{
    char list[SYSFS_TEXT];
    if (!sysfs_read(list, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu))
        return false;
    for (int i = 0; i < cpu; i++)
        if (counts[i] && sysfs_lists(list, i))
            return true;
    return false;
}

static double least(double a, double b)
{
    return a == 0 || (b > 0 && b < a) ? b : a;
}

/* What cpu.max ("QUOTA PERIOD" or "max PERIOD") or the two files of old groups in this folder allow. */
static double quota_in(const char *folder, bool old)
{
    char text[SYSFS_TEXT];
    double quota, period;
    if (!old) {
        char *end;
        if (!sysfs_read(text, "%s/cpu.max", folder) || (quota = strtod(text, &end)) <= 0 || end == text ||
            (period = strtod(end, NULL)) <= 0)
            return 0;
        return quota / period;
    }
    if (!sysfs_read(text, "%s/cpu.cfs_quota_us", folder) || (quota = strtod(text, NULL)) <= 0 ||
        !sysfs_read(text, "%s/cpu.cfs_period_us", folder) || (period = strtod(text, NULL)) <= 0)
        return 0;
    return quota / period;
}

/* The tightest of a group and all that it is part of. In a container the path may be the host's, whose folders are not
 * there: then the root of what is mounted is the container's own. */
static double quota_above(const char *mount, const char *group, bool old)
{
    char path[SYSFS_PATH];
    double found = quota_in(mount, old);
    size_t head = strlen(mount);
    if (snprintf(path, sizeof path, "%s%s", mount, group) >= (int)sizeof path)
        return found;
    for (char *slash = path + strlen(path); slash && slash > path + head; slash = strrchr(path, '/')) {
        *slash = 0;
        if (strlen(path) > head)
            found = least(found, quota_in(path, old));
    }
    return found;
}

/* A line of /proc/self/cgroup is ID:CONTROLLERS:PATH, and for groups of the second version 0::PATH. */
static double find_quota(const char *root)
{
    char text[SYSFS_TEXT], mount[SYSFS_PATH], *rest;
    double found = 0;
    if (!sysfs_read(text, "%s/proc/self/cgroup", root))
        return 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *what = strchr(line, ':'), *path = what ? strchr(what + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        what++;
        if (!*what && snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root) < (int)sizeof mount)
            found = least(found, quota_above(mount, path, false));
        char padded[256];
        snprintf(padded, sizeof padded, ",%s,", what);
        if (strstr(padded, ",cpu,") && snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%s", root, what) < SYSFS_PATH)
            found = least(found, quota_above(mount, path, true));
    }
    return found;
}

void cores_look(const char *root, const bool may[CORES_MOST_CPUS], struct cores *out)
{
    bool slow[CORES_MOST_CPUS], counts[CORES_MOST_CPUS] = {false};
    *out = (struct cores){0};
    find_slow(root, may, slow);
    for (int i = 0; i < CORES_MOST_CPUS; i++) {
        if (!may[i])
            continue;
        out->cpus++;
        if (slow[i])
            out->slow++;
        else if (is_sibling(root, counts, i))
            out->siblings++;
        else
            counts[i] = true;
    }
    out->cpus += out->cpus == 0;
    out->quota = find_quota(root);
    out->usable = out->cpus - out->slow - out->siblings;
    if (out->quota > 0 && out->quota < out->usable)
        out->usable = (int)out->quota;
    out->usable = out->usable > 1 ? out->usable : 1;
}

void cores_allowed(bool may[CORES_MOST_CPUS])
{
    cpu_set_t set;
    CPU_ZERO(&set);
    bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    for (int i = 0; i < CORES_MOST_CPUS; i++)
        may[i] = known && i < CPU_SETSIZE && CPU_ISSET(i, &set);
}

void cores_now(struct cores *out)
{
    bool may[CORES_MOST_CPUS];
    cores_allowed(may);
    cores_look("", may, out);
}

int cores_usable(void)
{
    struct cores c;
    cores_now(&c);
    return c.usable;
}

void cores_say(const struct cores *c, char *out, size_t cap)
{
    char parts[3][64] = {"", "", ""};
    if (cap)
        *out = 0;
    if (c->usable >= c->cpus)
        return;
    if (c->siblings)
        snprintf(parts[0], sizeof parts[0], ", %d share cores with others", c->siblings);
    if (c->slow)
        snprintf(parts[1], sizeof parts[1], ", %d are slow ones", c->slow);
    if (c->quota > 0 && c->usable <= c->quota && c->quota < c->cpus)
        snprintf(parts[2], sizeof parts[2], ", the control group has the time of %.3g", c->quota);
    snprintf(out, cap, "%d of %d CPUs%s%s%s", c->usable, c->cpus, parts[0], parts[1], parts[2]);
}
