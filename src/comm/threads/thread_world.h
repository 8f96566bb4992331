// Ranks as threads of one process: no launcher needed, and fast enough for property tests.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace longnet {

// Runs `rank_main` once per rank and returns when all have. A rank that throws ends the others; the
// first exception is thrown again here, with its rank in front.
void run_on_threads(int ranks, const std::function<void(Communicator&)>& rank_main);

}  // namespace longnet
