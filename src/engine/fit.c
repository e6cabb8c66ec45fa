/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/fit.h"

#include <math.h>

#include "engine/stats.h"

/* us: what is less cannot be told from noise, and what is more is no noise. */
static const double noise_us = 0.05, exposed_us = 0.3;

bool pz_fit_line(const double *x, const double *y, int n, double *base, double *slope) {
    double mx = 0, my = 0, xx = 0, xy = 0;
    for (int i = 0; i < n; i++) mx += x[i] / n, my += y[i] / n;
    for (int i = 0; i < n; i++) xx += (x[i] - mx) * (x[i] - mx), xy += (x[i] - mx) * (y[i] - my);
    if (!(xx > 0)) return false;
    *slope = xy / xx;
    *base = my - *slope * mx;
    return true;
}

bool pz_fit_times(const double *rows, const double *us, int n, double *base, double *row) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += us[i];
    if (n < 1) return false;
    if (!pz_fit_line(rows, us, n, base, row) || *row < 0 || *base < 0) *base = sum / n, *row = 0;
    return true;
}

double pz_fit_extra(const double *us, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += us[i];
    return n > 0 && sum / n > noise_us ? sum / n : 0;
}

/* norm_base and norm_row. */
static bool fit_donor(const pz_norm_sample *s, int n, double *x, double *y, pz_gate_constants *out) {
    int used = 0;
    for (int i = 0; i < n; i++) {
        if (s[i].bytes) continue;
        x[used] = s[i].m;
        y[used++] = s[i].us;
    }
    return pz_fit_times(x, y, used, &out->norm_base, &out->norm_row);
}

/* A norm with a rider takes rider + the longer of donor + beside / fill and busiest / fill. */
typedef struct carried {
    double us, donor;
    pz_rider rider;
} carried;

/* What this rider adds beyond what any adds, at `slope` us a byte and unit. */
static double added(const carried *c, double slope) {
    double outlasts = slope * c->rider.busiest - c->donor, beside = slope * c->rider.beside;
    return outlasts > beside ? outlasts : beside;
}

/* The mean of what riders add that by this slope the norm hides. False: there are none. Slope 0: not known. */
static bool hidden_us(const carried *c, int n, double slope, double *rider) {
    double sum = 0;
    int hidden = 0;
    for (int i = 0; i < n; i++) {
        double excess = c[i].us - c[i].donor, most = slope * c[i].rider.busiest;
        bool is_hidden = slope > 0 ? added(&c[i], slope) <= noise_us && most < 0.8 * c[i].donor : excess <= exposed_us;
        if (is_hidden) sum += excess - slope * c[i].rider.beside, hidden++;
    }
    if (hidden) *rider = sum / hidden > noise_us ? sum / hidden : 0;
    return hidden > 0;
}

/* The slope, from riders that by the last one clearly lengthen the norm; 0: there are none. */
static double exposed_slope(const carried *c, int n, double last, double rider) {
    double xy = 0, xx = 0;
    for (int i = 0; i < n; i++) {
        if (added(&c[i], last) <= exposed_us) continue;
        bool outlasts = last * (c[i].rider.busiest - c[i].rider.beside) > c[i].donor;
        double x = outlasts ? c[i].rider.busiest : c[i].rider.beside;
        xy += x * (c[i].us - rider - (outlasts ? 0 : c[i].donor));
        xx += x * x;
    }
    return xx > 0 && xy > 0 ? xy / xx : 0;
}

/* fill and rider. Which riders the norm hides, and how the others lengthen it, depends on the slope: it begins with the
 * smallest that a sample allows. */
static void fit_rider(const carried *c, int n, pz_gate_constants *out) {
    enum { ROUNDS = 6 };
    double slope = INFINITY, rider = 0;
    for (int i = 0; i < n; i++) {
        /* less than noise tells nothing, and 0 would make the slope 0 */
        double excess = fmax(c[i].us - c[i].donor, noise_us), beside = c[i].rider.beside;
        double most = c[i].us / c[i].rider.busiest;
        if (beside > 0 && excess / beside < most) most = excess / beside;
        if (most < slope) slope = most;
    }
    for (int round = 0; round < ROUNDS && slope > 0; round++) {
        hidden_us(c, n, slope, &rider);
        slope = exposed_slope(c, n, slope, rider);
    }
    if (slope > 0) out->fill = 1 / slope;
    if (hidden_us(c, n, slope, &rider)) out->rider = rider;
}

pz_status pz_fit_norm(const pz_norm_sample *s, int n, int units, pz_gate_constants *out, pz_error *err) {
    double *x = pz_calloc((size_t)n + 1, sizeof *x), *y = pz_calloc((size_t)n + 1, sizeof *y);
    carried *c = pz_calloc((size_t)n + 1, sizeof *c);
    pz_status st = x && y && c ? PZ_OK : PZ_NOMEM(err);
    if (st == PZ_OK && fit_donor(s, n, x, y, out)) {
        int used = 0;
        for (int i = 0; i < n; i++)
            if (s[i].bytes)
                c[used++] =
                    (carried){s[i].us, out->norm_base + out->norm_row * s[i].m, pz_rider_of(s[i].m, s[i].bytes, units)};
        fit_rider(c, used, out);
    }
    pz_free(c);
    pz_free(x);
    pz_free(y);
    return st;
}

pz_status pz_fit_handshake(const pz_zero_sample *s, int n, int units, pz_gate_constants *out, pz_error *err) {
    if (n < 1) return PZ_OK;
    double *extra = pz_calloc((size_t)n, sizeof *extra);
    if (!extra) return PZ_NOMEM(err);
    for (int i = 0; i < n; i++) extra[i] = s[i].self_us - s[i].zeroed_us - (double)s[i].bytes / (out->fill * units);
    pz_stats_sort(extra, n);
    double median = pz_stats_median(extra, n);
    out->handshake = median > 0 ? median : 0;
    pz_free(extra);
    return PZ_OK;
}
