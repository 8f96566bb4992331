// For tests: how often this process has called operator new.
#pragma once
#include <cstdint>

namespace longnet {
int64_t allocations_so_far();
}
