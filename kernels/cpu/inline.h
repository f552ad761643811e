/* How the SIMD kernels are put together. Their bodies are inlined for each weight family and tile height, which become
 * constants, and small loops are unrolled. Under a sanitizer or under emulation the same source keeps its functions
 * and loops: unrolled, it would take minutes to build. */
#ifndef CPU_INLINE_H
#define CPU_INLINE_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SLOW_BUILD 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW_BUILD 1
#endif

#if defined(SLOW_BUILD) || defined(CPU_INTRINSICS)
#define INLINE static inline
#define UNROLL
#define UNROLL_SUMS
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL_SUMS _Pragma("GCC unroll 24") /* of as many as a tile has */
#endif

#endif
