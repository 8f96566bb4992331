// How often this process has called operator new: a timed region must not.
#pragma once
#include <cstdint>

namespace longnet {
int64_t allocations_so_far();
}
