"""Training of the predictors. It needs the extra `[predict]`: numpy, scipy, scikit-learn, torch."""
