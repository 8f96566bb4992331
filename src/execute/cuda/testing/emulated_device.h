// For tests: a GPU that is not there. Streams are lists of closures, memory is the host's.
//
// Work on a stream is done as late as it may be: when somebody waits for it. A stream whose event
// was not waited for stays behind for ever, so a missing dependency between streams gives NaN or
// old values, and a circular one throws.
#pragma once
#include <functional>

#include "core/cuda/device.h"

namespace longnet {

// What a kernel launch is.
void emulate_launch(const Stream& stream, std::function<void()> kernel);

}  // namespace longnet
