// Checks the contract of Communicator, as a program for one rank: throws Error when the transport
// breaks it.
#pragma once
#include "comm/communicator.h"

namespace longnet {

void check_communicator(Communicator& comm);

}  // namespace longnet
