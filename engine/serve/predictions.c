#include "engine/serve/predictions.h"

#include <string.h>

#include "engine/base/buf.h"

static void put_policy(struct buf *out, const struct predicted_policy *p)
{
    bool has_params = p->params && strcmp(p->params, "{}") != 0;
    buf_printf(out, "%s %s\n", p->sha256, has_params ? p->params : "");
}

static struct sha256 key_of(const struct predicted_policy *live, const struct predicted_policy *other)
{
    struct buf text = {0};
    put_policy(&text, live);
    put_policy(&text, other);
    struct sha256 key = hash_sha256(text.data, text.len);
    buf_free(&text);
    return key;
}

void predictions_add(struct predictions *p, struct predicted_policy live, struct predicted_policy other,
                     const struct prediction *it, int64_t now_ns)
{
    struct sha256 key = key_of(&live, &other);
    int at = 0;
    for (int i = 0; i < PREDICTIONS_KEPT; i++)
        if (p->kept[i].at_ns < p->kept[at].at_ns)
            at = i;
    for (int i = 0; i < PREDICTIONS_KEPT; i++)
        if (p->kept[i].at_ns && hash_equal(&p->kept[i].key, &key))
            at = i;
    p->kept[at] = (struct predicted_swap){key, now_ns, *it};
}

int predictions_find(const struct predictions *p, struct predicted_policy live, struct predicted_policy other,
                     int64_t now_ns, struct prediction *out, struct err *e)
{
    struct sha256 key = key_of(&live, &other);
    const struct predicted_swap *found = NULL;
    for (int i = 0; i < PREDICTIONS_KEPT; i++)
        if (p->kept[i].at_ns && hash_equal(&p->kept[i].key, &key))
            found = &p->kept[i];
    if (!found)
        return err_set(
            e, E_NOTFOUND,
            "no what-if of this version, with these params, against the policy that is live now has been run "
            "on this server: run one first (moonshift policy what-if, push --try, or POST /admin/what-if)");
    if (!found->it.is_made)
        return err_set(e, E_NOTFOUND,
                       "the last what-if of this version against the live policy found problems, or had nothing to "
                       "compare with, so it predicts nothing: look at what it says, and run another");
    if (now_ns - found->at_ns > PREDICTION_HOLDS_S * INT64_C(1000000000))
        return err_set(
            e, E_NOTFOUND,
            "the last what-if of this version against the live policy is more than an hour old: run another");
    *out = found->it;
    out->ago_s = (double)(now_ns - found->at_ns) * 1e-9;
    return 0;
}
