// `lnbench compare`: did anything get slower between two results?
#include "io/compare.h"
#include "io/units.h"
#include "lnbench/terminal.h"

namespace longnet {

int run_compare(const Options& options) {
  const Comparison comparison = compare_results(
      read_result(options.base), read_result(options.now),
      {.threshold = parse_fraction(options.threshold), .any_transport = options.any_transport});
  write_comparison(comparison, table_style(options));
  if (comparison.regressed()) return kRegression;
  return comparison.decided() > 0 ? kOk : kFailed;
}

}  // namespace longnet
