/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding: default, linear and YaRN (Peng et al. 2023, arXiv:2309.00071), with the conventions of
 * transformers, so that the same configuration gives the same numbers. */
#include <math.h>

#include "model/model.h"

static double get_mscale(double factor, double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The pair of dimensions that makes `rotations` turns over the original context. */
static double correction_pair(const pz_hf_config *c, double rotations) {
    return (double)c->rope * log((double)c->yarn_original / (rotations * 2 * M_PI)) / (2 * log(c->rope_theta));
}

void pz_rope_frequencies(const pz_hf_config *c, float *inv_freq) {
    double low = 0, high = 0;
    if (c->yarn) {
        low = correction_pair(c, c->yarn_beta_fast);
        high = correction_pair(c, c->yarn_beta_slow);
        if (c->yarn_truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, (double)(c->rope - 1));
        if (low == high) high += 0.001;
    }
    for (int64_t i = 0; i < c->rope / 2; i++) {
        double base = pow(c->rope_theta, -(double)(2 * i) / (double)c->rope);
        if (c->yarn) {
            /* 0: fast pairs keep their frequency; 1: slow pairs are stretched over the longer context. */
            double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
            base = base / c->yarn_factor * ramp + base * (1 - ramp);
        }
        inv_freq[i] = (float)(base / c->rope_linear);
    }
}

double pz_rope_cos_scale(const pz_hf_config *c) {
    if (!c->yarn) return 1;
    if (c->yarn_attention_factor > 0) return c->yarn_attention_factor;
    if (c->yarn_mscale > 0 && c->yarn_mscale_all_dim > 0)
        return get_mscale(c->yarn_factor, c->yarn_mscale) / get_mscale(c->yarn_factor, c->yarn_mscale_all_dim);
    return get_mscale(c->yarn_factor, 1);
}

double pz_softmax_scale(const pz_hf_config *c) {
    double scale = 1 / sqrt((double)(c->nope + c->rope));
    double factor = c->yarn ? c->yarn_factor : c->rope_linear;
    if (c->yarn_mscale_all_dim > 0) {
        double m = get_mscale(factor, c->yarn_mscale_all_dim);
        scale *= m * m;
    }
    return scale;
}
