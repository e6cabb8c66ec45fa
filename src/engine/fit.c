/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/fit.h"

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

/* norm_base and norm_row. Times that fall with the rows are noise: then the norm takes the mean of them. */
static bool fit_donor(const pz_norm_sample *s, int n, double *x, double *y, pz_gate_constants *out) {
    int used = 0;
    double sum = 0, base, row;
    for (int i = 0; i < n; i++) {
        if (s[i].bytes) continue;
        x[used] = s[i].m;
        y[used++] = s[i].us;
        sum += s[i].us;
    }
    if (!used) return false;
    if (!pz_fit_line(x, y, used, &base, &row) || row < 0 || base < 0) base = sum / used, row = 0;
    out->norm_base = base;
    out->norm_row = row;
    return true;
}

/* fill, from the fills that are clearly not hidden: those take rider + bytes / (fill * idle units). Then rider, from
 * those that by this rate are. */
static void fit_rider(const pz_norm_sample *s, int n, int units, double *x, double *y, pz_gate_constants *out) {
    int exposed = 0, hidden = 0;
    double sum = 0, base, slope;
    for (int i = 0; i < n; i++) {
        double donor = out->norm_base + out->norm_row * s[i].m;
        if (!s[i].bytes || s[i].m >= units || s[i].us - donor <= exposed_us) continue;
        x[exposed] = (double)s[i].bytes / (units - s[i].m);
        y[exposed++] = s[i].us;
    }
    bool known = pz_fit_line(x, y, exposed, &base, &slope) && slope > 0;
    if (known) out->fill = 1 / slope;
    for (int i = 0; i < n; i++) {
        double donor = out->norm_base + out->norm_row * s[i].m, excess = s[i].us - donor;
        if (!s[i].bytes || s[i].m >= units) continue;
        bool is_hidden = known ? (double)s[i].bytes * slope / (units - s[i].m) < 0.8 * donor : excess <= exposed_us;
        if (is_hidden) sum += excess, hidden++;
    }
    if (hidden) out->rider = sum / hidden > noise_us ? sum / hidden : 0;
}

pz_status pz_fit_norm(const pz_norm_sample *s, int n, int units, pz_gate_constants *out, pz_error *err) {
    double *x = pz_calloc((size_t)n + 1, sizeof *x), *y = pz_calloc((size_t)n + 1, sizeof *y);
    pz_status st = x && y ? PZ_OK : PZ_NOMEM(err);
    if (st == PZ_OK && fit_donor(s, n, x, y, out)) {
        fit_rider(s, n, units, x, y, out);
    }
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
