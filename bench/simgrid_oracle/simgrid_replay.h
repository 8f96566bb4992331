// Times compact programs by SimGrid (Casanova et al., JPDC 2014) on the links that this suite's
// engine has: an independent answer to compare ours with.
//
// Every lane of every rank is an s4u actor that waits, sleeps and posts; every (from, to) channel
// is one that carries its messages one after the other. Event order, clock and max-min sharing are
// SimGrid's. Its own idea of TCP is switched off: latencies are slept by the carriers, so that no
// flow's share depends on its round-trip time.
#pragma once
#include "simulate/compact_program.h"
#include "simulate/topology.h"

namespace longnet {

// Seconds until the last op is over; no rank is left out. In a process of its own (SimGrid has one
// engine per process). Throws Error when that process fails.
double simgrid_makespan(const ProgramSet& programs, const Topology& topology,
                        ExecutionKind execution);

}  // namespace longnet
