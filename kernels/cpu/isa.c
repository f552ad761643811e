#include "kernels/cpu/isa.h"

#include <string.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/encode_kernels.h"
#include "kernels/cpu/kernels.h"

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma"); /* and so F16C, which not every compiler can ask for */
#else
    return false;
#endif
}

static bool has_avx512(void)
{
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

/* Linux lets a process have tiles once it has asked. */
static bool has_amx(void)
{
#if defined(__x86_64__)
    enum { REQUEST = 0x1023, TILE_DATA = 18, BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25 };
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & TILE && d & INT8 && d & BF16 &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

enum half_dots isa_half_dots(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16"))
        return __builtin_cpu_is("intel") ? DOTS_OF_FEW_ROWS : DOTS_EVERYWHERE;
#endif
    return DOTS_NOWHERE;
}

static bool has_neon(void)
{
#if defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMD;
#else
    return false;
#endif
}

static bool has_dotprod(void)
{
#if defined(__aarch64__)
    return has_neon() && getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return false;
#endif
}

static bool has_i8mm(void)
{
#if defined(__aarch64__)
    return has_dotprod() && getauxval(AT_HWCAP2) & HWCAP2_I8MM;
#else
    return false;
#endif
}

static bool always(void)
{
    return true;
}

/* Better ones first. What makes the ARM ones differ are products of bytes, which encoders have none of. */
static const struct isa sets[] = {
    {"amx", "AVX-512 F, BW, VL, DQ and VNNI, and AMX of int8 and bfloat16", has_amx, cpu_kernels_avx512,
     encode_kernels_avx512, linear_amx},
    {"avx512", "AVX-512 F, BW, VL, DQ and VNNI", has_avx512, cpu_kernels_avx512, encode_kernels_avx512, NULL},
    {"avx2", "AVX2, FMA and F16C", has_avx2, cpu_kernels_avx2, encode_kernels_avx2, NULL},
    {"i8mm", "NEON, its dot products and its I8MM", has_i8mm, cpu_kernels_i8mm, encode_kernels_neon, NULL},
    {"dotprod", "NEON and its dot products", has_dotprod, cpu_kernels_dotprod, encode_kernels_neon, NULL},
    {"neon", "NEON of 64-bit ARM", has_neon, cpu_kernels_neon, encode_kernels_neon, NULL},
    {"portable", "", always, cpu_kernels_portable, encode_kernels_portable, NULL},
};
enum { N_SETS = sizeof sets / sizeof *sets };

int isa_pick(const char *name, const struct isa **out, struct err *e)
{
    bool any = !name || strcmp(name, "auto") == 0;
    for (int i = 0; i < N_SETS; i++) {
        bool can = sets[i].here() && sets[i].kernels() && sets[i].encode() && (!sets[i].tiles || sets[i].tiles());
        *out = &sets[i];
        if (any && can)
            return 0;
        if (!any && strcmp(name, sets[i].name) == 0)
            return can ? 0 : err_set(e, E_UNSUPPORTED, "this CPU has no %s (%s); use auto", name, sets[i].needs);
    }
    return err_set(e, E_INPUT,
                   "no instruction set \"%.20s\": choose auto, portable, avx2, avx512, amx, neon, dotprod or i8mm",
                   name);
}
