#include "engine/base/err.h"

#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        e->code = code;
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
    }
    return code;
}

int err_prefix(struct err *e, int code, const char *fmt, ...)
{
    if (!e)
        return code;
    char old[sizeof e->text], head[sizeof e->text / 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    memcpy(old, e->text, sizeof old);
    old[sizeof old - 1] = 0;
    int n = snprintf(e->text, sizeof e->text, "%s: %s", head, old);
    if (n >= (int)sizeof e->text) /* the tail is what is cut: the head says where */
        e->text[sizeof e->text - 1] = 0;
    return e->code ? e->code : code;
}

const char *err_name(int code)
{
    switch (code) {
    case 0:
        return "ok";
    case E_INPUT:
        return "input";
    case E_FULL:
        return "full";
    case E_GONE:
        return "gone";
    case E_POLICY:
        return "policy";
    case E_DEVICE:
        return "device";
    case E_SYS:
        return "system";
    case E_NOTFOUND:
        return "not found";
    case E_UNSUPPORTED:
        return "unsupported";
    case E_PEER:
        return "peer";
    }
    return "unknown";
}
