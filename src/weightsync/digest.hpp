// XXH3 of buckets and rows.
#pragma once

// The dispatching entry points take AVX2 or AVX-512 where the processor has it; the digests are the
// same.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif
