"""What every room shares: records, checks, binning, kernels and name lookup. Imports nothing else of calibrant."""
