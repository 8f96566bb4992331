// How often this process has called operator new: a timed region must not. For programs that link
// allocation_counter.cpp, which replaces the global operator new.
#pragma once
#include <cstdint>

namespace longnet {
int64_t allocations_so_far();
}
