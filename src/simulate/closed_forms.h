// Cases whose time an equation gives; the simulator must reproduce them to the last digits.
#pragma once
#include <string>
#include <vector>

namespace longnet {

struct ClosedForm {
  std::string name, equation;
  double expected_s = 0, simulated_s = 0;
  double rel_error() const;
};

// Ring attention, ring all-gather, pairwise and linear all-to-all, two flows on one link, a tapered
// tree.
std::vector<ClosedForm> closed_forms();

}  // namespace longnet
