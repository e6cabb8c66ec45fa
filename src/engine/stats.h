/* SPDX-License-Identifier: Apache-2.0 */
/* Order statistics of timings: distribution free, because timings are skewed and have outliers. */
#ifndef PZ_STATS_H
#define PZ_STATS_H

enum { PZ_STATS_MIN_CI = 6 }; /* fewer samples have no 95 % interval: 1 - 2 * 0.5^5 = 0.9375 */

void pz_stats_sort(double *v, int n); /* ascending, no NaN */
double pz_stats_median(const double *sorted, int n);
/* 95 % confidence interval of the median of the n >= PZ_STATS_MIN_CI samples in `sorted`: from the j-th smallest to the
 * j-th largest, with the largest j whose coverage 1 - 2 P(Binomial(n, 1/2) < j) is at least 0.95 (the sign test
 * inverted; David and Nagaraja, Order Statistics, 3rd ed., section 7.1). Below that many samples it is the whole
 * range. */
void pz_stats_median_ci(const double *sorted, int n, double *lo, double *hi);

#endif
