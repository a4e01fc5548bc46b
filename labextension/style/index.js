import './base.css';
import './history.css';
import './admin.css';
import './plots.css';
