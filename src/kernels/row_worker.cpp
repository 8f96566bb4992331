#include "kernels/row_worker.h"

#include <algorithm>

namespace longnet {

void OutputSummary::add(const OutputSummary& o) {
  rows += o.rows;
  absent_rows += o.absent_rows;
  nan_values += o.nan_values;
  sum += o.sum;
  sum_squares += o.sum_squares;
  min = std::min(min, o.min);
  max = std::max(max, o.max);
  lse_sum += o.lse_sum;
  digest += o.digest;
}

}  // namespace longnet
