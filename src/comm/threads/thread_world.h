// Ranks as threads of one process: no launcher needed, and fast enough for property tests.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace longnet {

// Runs `rank_main` once per rank and returns when all have. A rank that throws, or whose thread
// cannot start, ends the others; the first exception is thrown again here, with its rank in front.
void run_on_threads(int ranks, const std::function<void(Communicator&)>& rank_main);

// Throws Error unless this many threads can run at once beside those there are: OpenMP ends the
// process where one cannot start.
void require_threads(int count);

}  // namespace longnet
